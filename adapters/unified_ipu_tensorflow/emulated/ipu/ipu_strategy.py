"""``tensorflow.python.ipu.ipu_strategy``: models made in its scope train as on IPUs.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/ipu_strategy.py``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List

from unified_ipu.device import fabric_of
from unified_ipu_tensorflow.emulated.notes import refuse_others


class IPUStrategyV1:
    """One TensorFlow device of one or more IPUs.

    Args:
        ipu_device: By its name; the number at the end counts the entries of ``auto_select_ipus``.
        cpu_device: Host device.
        enable_dataset_iterators: Concerns loops of one's own, which are not emulated.
        enable_keras_extensions: Whether Keras models made in the scope run as on IPUs.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        del cpu_device, enable_dataset_iterators
        if not enable_keras_extensions:
            raise NotImplementedError(
                "enable_keras_extensions=False leaves Keras as it is on hosts; only models of "
                "Keras with the extensions are emulated"
            )
        self.ordinal = int(ipu_device.rpartition(":")[2])

    @property
    def num_replicas_in_sync(self) -> int:
        """1, whatever the number of local replicas: nobody should scale by it."""
        return 1

    def fabric(self) -> Any:
        """The links of this process's devices to those of others; not part of the SDK."""
        return fabric_of(1)

    @contextmanager
    def scope(self) -> Iterator[IPUStrategyV1]:
        """Let Keras models that are made inside be those of IPUs."""
        from unified_ipu_tensorflow.emulated.keras.construction import models_are_extended

        _entered.append(self)
        try:
            with models_are_extended(self):
                yield self
        finally:
            _entered.pop()

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Refused: loops of one's own are not emulated.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "strategy.run is not emulated: train Keras models with fit, which unified_ipu lowers to"
        )


IPUStrategy = IPUStrategyV1
_entered: List[IPUStrategyV1] = []


def has_strategy() -> bool:
    """Whether a scope is open; not part of the SDK."""
    return bool(_entered)


__getattr__ = refuse_others("tensorflow.python.ipu.ipu_strategy")

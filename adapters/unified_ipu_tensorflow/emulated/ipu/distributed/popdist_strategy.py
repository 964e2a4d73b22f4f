"""``tensorflow.python.ipu.distributed.popdist_strategy``: one model on several processes.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/distributed/popdist_strategy.py``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

import numpy as np
import tensorflow as tf

from unified_ipu.device import fabric_of
from unified_ipu_tensorflow.emulated import popdist
from unified_ipu_tensorflow.emulated.ipu.ipu_strategy import IPUStrategyV1
from unified_ipu_tensorflow.emulated.notes import refuse_others


class PopDistStrategy(IPUStrategyV1):
    """The devices of all instances together.

    Unlike ``IPUStrategyV1`` it counts all replicas as in sync, so Keras divides losses that are
    means, and the terms that models add, by them. Variables that are made in its scope begin as
    those of instance 0; what is assigned to them later is each instance's own.

    Args:
        ipu_device: By its name.
        add_ipu_cross_replica_reductions: Whether gradients are summed over replicas.
        enable_dataset_iterators: Concerns loops of one's own, which are not emulated.
        enable_keras_extensions: As for ``IPUStrategyV1``.

    Raises:
        NotImplementedError: If gradients should not be summed.
    """

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        if not add_ipu_cross_replica_reductions:
            raise NotImplementedError("add_ipu_cross_replica_reductions=False is not emulated")
        super().__init__(
            ipu_device,
            enable_dataset_iterators=enable_dataset_iterators,
            enable_keras_extensions=enable_keras_extensions,
        )
        popdist.init()

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of all instances."""
        return popdist.getNumTotalReplicas()

    @contextmanager
    def scope(self) -> Iterator[PopDistStrategy]:
        """As of ``IPUStrategyV1``; all instances have to make the same variables inside."""
        with super().scope(), tf.variable_creator_scope(self._begun_alike):
            yield self

    def _begun_alike(self, make: Callable[..., Any], **kwargs: Any) -> Any:
        variable, fabric = make(**kwargs), self.fabric()
        if fabric.size > 1 and tf.executing_eagerly() and bool(variable.is_initialized()):
            value = variable.numpy()
            mine = value if fabric.rank == 0 else np.zeros_like(value)
            # Not by its name: that counts what a process has made before.
            variable.assign(fabric.sum(mine, "a variable where it is made"))
        return variable

    def fabric(self) -> Any:
        """The links to the other instances."""
        return fabric_of(popdist.getNumInstances(), popdist.getInstanceIndex())


__getattr__ = refuse_others("tensorflow.python.ipu.distributed.popdist_strategy")

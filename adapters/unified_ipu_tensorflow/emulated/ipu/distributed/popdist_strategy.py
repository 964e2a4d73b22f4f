"""``tensorflow.python.ipu.distributed.popdist_strategy``: one model on several processes.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/distributed/popdist_strategy.py``.
"""

from __future__ import annotations

from typing import Any

from unified_ipu.device import fabric_of
from unified_ipu_tensorflow.emulated import popdist
from unified_ipu_tensorflow.emulated.ipu.ipu_strategy import IPUStrategyV1
from unified_ipu_tensorflow.emulated.notes import refuse_others


class PopDistStrategy(IPUStrategyV1):
    """The devices of all instances together.

    Unlike ``IPUStrategyV1`` it counts all replicas as in sync, so Keras divides losses that are
    means, and the terms that models add, by them. Weights begin as those of instance 0.

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

    def fabric(self) -> Any:
        """The links to the other instances."""
        return fabric_of(popdist.getNumInstances(), popdist.getInstanceIndex())


__getattr__ = refuse_others("tensorflow.python.ipu.distributed.popdist_strategy")

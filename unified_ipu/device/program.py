"""One entry into the device: all its micro-batches, reductions and updates."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from unified_ipu.device.fabric import Alone, Fabric
from unified_ipu.device.layout import CallShape, Position
from unified_ipu.device.reduction import (
    Accumulator,
    Arithmetic,
    Gradients,
    Reduction,
    reduce_replicas,
)


def train(
    shape: CallShape,
    reduction: Reduction,
    micro_step: Callable[[Position], Gradients],
    apply: Callable[[Dict[str, Any]], None],
    *,
    arithmetic: Arithmetic,
    loss_scale: float = 1.0,
    fabric: Optional[Fabric] = None,
) -> None:
    """Run the updates of a call in sequence, each with the weights that the one before left.

    Args:
        shape: Of the call.
        reduction: Native settings; nothing of the loss is ever divided here but by them.
        micro_step: Runs forward and backward of one micro-batch with the present weights and the
            replica's own buffers, and returns gradients by the name of the parameter. It keeps
            what the model returned by itself (``Outputs.take``).
        apply: Takes the gradient of an update: clips, and changes the weights of all replicas.
        arithmetic: On the skin's arrays.
        loss_scale: What ``micro_step`` multiplied the loss with; removed before ``apply``.
        fabric: The processes of the device; one if None.
    """
    links: Fabric = Alone() if fabric is None else fabric
    factor = 1.0 / (reduction.divisor(shape.accumulation, shape.replicas * links.size) * loss_scale)
    for iteration in range(shape.iterations):
        accumulators = [
            Accumulator(reduction, shape.accumulation, arithmetic) for _ in range(shape.replicas)
        ]
        for position in shape.update(iteration):
            accumulators[position.replica].add(micro_step(position))
        apply(
            reduce_replicas(
                [one.totals for one in accumulators],
                factor=factor,
                arithmetic=arithmetic,
                fabric=links,
            )
        )


def infer(shape: CallShape, micro_step: Callable[[Position], None]) -> None:
    """Run the executions of a call.

    Args:
        shape: Of the call; accumulation must be 1, which the native API checks.
        micro_step: Runs one micro-batch and keeps what the model returned.
    """
    for iteration in range(shape.iterations):
        for position in shape.update(iteration):
            micro_step(position)

"""The boundary of targets that run whole calls: what a device is fed, and what it gives back.

The core's ``DeviceExecutor`` does what is the same on every device (W over the world, updates
without weight, padding, coefficients, records), so that a ``Device`` only translates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Protocol, Sequence, Tuple, runtime_checkable

from unified_ipu.adapter.contract import Array, Metric, MicroBatch, Tree
from unified_ipu.plan import TensorSpec


@dataclass(frozen=True)
class Measure:
    """What a micro-batch weighs, known before forward: S = sum of ``factors`` x the loss.

    Args:
        weight: W of this micro-batch, rows of padding left out.
        factors: float64 ``[rows]`` if the device's loss is one value a row, 0 for padding; else
            one number for the whole micro-batch: 1 where the loss is a sum, W where it is a mean.
    """

    weight: float
    factors: Array


@dataclass(frozen=True)
class DeviceUpdate:
    """One update as it is fed: whole, with static shapes.

    Args:
        number: Counts all updates of the program.
        weight: W over the world, above 0.
        micro_batches: A x R of them with B rows each, numpy leaves; micro-batch a of this process's
            replica r is at ``a * R + r``. A device that takes another order reorders them.
        coefficients: What the loss is multiplied with so that the sum over the update is what is
            differentiated, float64: ``[A x R, B]``, or ``[A x R]`` if rows have none of their own.
        micro_weights: W of each micro-batch, float64 ``[A x R]``: for terms that do not depend on
            samples, which count as ``term x micro_weight / weight``.
    """

    number: int
    weight: float
    micro_batches: Tuple[MicroBatch, ...]
    coefficients: Array
    micro_weights: Array


@dataclass(frozen=True)
class DeviceTally:
    """What a call counted in this process.

    Args:
        loss_sum: S over its updates, not divided by W.
        metrics: ``{name: (sum, weight)}`` of an objective, over them.
    """

    loss_sum: float
    metrics: Mapping[str, Tuple[float, float]] = field(default_factory=dict)


@runtime_checkable
class Device(Protocol):
    """One process's devices, with all replicas that lie on them, driven by ``DeviceExecutor``.

    What it cannot do (random numbers by key, a loss whose weight needs outputs) it refuses when it
    is built, naming the change. ``notes``, ``hand_back`` and ``export_onnx`` as of a replica.
    """

    @property
    def weighs_rows(self) -> bool:
        """Whether the loss is one value a row, so that rows can have weights and be padding."""
        ...

    @property
    def micro_batches_at_once(self) -> int:
        """How many micro-batches ``infer`` takes at once."""
        ...

    def measure(self, micro: MicroBatch) -> Measure:
        """Count a micro-batch before it is fed; it has at least one row that is no padding.

        Raises:
            CapabilityError: If the weight needs the model's outputs.
        """
        ...

    def run(self, updates: Sequence[DeviceUpdate], *, lr_factor: float, seed: int) -> DeviceTally:
        """Run 1 to ``updates_per_call`` updates in one entry into the device.

        A program of another length is compiled when it is asked for, and kept. Learning rates are
        the base ones times ``lr_factor``, for the whole call.
        """
        ...

    def infer(self, micro_batches: Sequence[MicroBatch]) -> Sequence[Any]:
        """Forward in evaluation mode of ``micro_batches_at_once`` micro-batches of equal rows.

        Returns:
            One opaque result for each, for ``score`` and ``outputs``; no state is changed.
        """
        ...

    def score(
        self, micro: MicroBatch, result: Any, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """``"loss"`` and each metric as (sum, weight); rows of padding do not count."""
        ...

    def outputs(self, result: Any) -> Tree:
        """The model's outputs as a tree of numpy arrays, padding included."""
        ...

    def end_call(self, num_updates: int) -> None:
        """As ``Replica.end_call``."""
        ...

    def learning_rates(self) -> Sequence[float]:
        """As ``Replica.learning_rates``."""
        ...

    def tensors(self) -> Sequence[TensorSpec]:
        """As ``Replica.tensors``; slots where the device gives them out."""
        ...

    def read(self, names: Sequence[str]) -> Dict[str, Array]:
        """As ``Replica.read``: what is on the device now."""
        ...

    def write(self, tensors: Mapping[str, Array]) -> None:
        """As ``Replica.write``: on the host and on all replicas."""
        ...

    def scalars(self) -> Dict[str, Any]:
        """As ``Replica.scalars``."""
        ...

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """As ``Replica.load_scalars``."""
        ...

    def forget_slots(self) -> None:
        """As ``Replica.forget_slots``."""
        ...

    def close(self) -> None:
        """Leave the device; the user's model keeps the trained weights."""
        ...

"""The same models on a device that runs whole calls: the second half of the boundary.

``Engine`` stands in for an SDK: it knows native settings and what it is fed, never a plan, so a
wrong lowering gives wrong numbers. What it computes in a call is ``unified_ipu.device``'s.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import (
    DeviceCall,
    DeviceTally,
    DeviceUpdate,
    Job,
    Lowering,
    Measure,
    Metric,
    MicroBatch,
    NativeCall,
    Place,
    Plan,
    Tree,
    apply_native_calls,
    host_batch,
)
from unified_ipu.device import CallShape, Fabric, Position, Reduction, fabric_of, train
from unified_ipu.errors import CapabilityError
from unified_ipu.plan import device_batch
from unified_ipu_numpy import NAME, NumpyReplica, measured, row_factors, split, step


def lower_for_device(plan: Plan, target: str) -> Lowering:
    """Every field that has a meaning on a device as a setting of ``Engine``, or refused."""
    batch, refused = device_batch(plan)
    if plan.update.clip_norm is not None:
        refused += (("update.clip_norm", "clipping is not written here; leave it out"),)
    settings: Tuple[Tuple[str, Any, str], ...] = (
        ("engine.iterations", batch.updates_per_call, "batch.updates_per_call"),
        ("engine.accumulation", batch.accumulation, "batch.global_batch_size"),
        ("engine.replicas", batch.local_replicas, "ipu.replicas_per_process"),
        ("engine.reduction", "sum", "update.reduction"),
        ("engine.configure_process", f"=process_id, {batch.processes}", "mesh.data"),
        ("engine.rate", "=rate", "update.lr_scaling"),
    )
    call = DeviceCall(batch.ipus, batch.processes, batch.host_rows, "a, r, row", batch.samples)
    return Lowering(
        NAME,
        target,
        refused=tuple(refused),
        calls=tuple(NativeCall("training", *setting) for setting in settings),
        device_call=None if refused else call,
    )


class Arrays:
    """numpy's own arithmetic, for ``unified_ipu.device``."""

    def start(self, gradient: Any) -> Any:
        return np.array(gradient)

    def add(self, total: Any, value: Any) -> Any:
        return total + value

    def scale(self, value: Any, factor: float) -> Any:
        return value * value.dtype.type(factor)

    def finish(self, total: Any, factor: float) -> Any:
        return self.scale(total, factor)

    def across(self, total: Any, fabric: Fabric) -> Any:
        return fabric.sum(total)


class Engine:
    """An SDK in small: settings, then a call."""

    def __init__(self) -> None:
        self.iterations = self.accumulation = self.replicas = 1
        self.reduction = "mean"
        self.rate = 0.0
        self._process = (0, 1)

    def configure_process(self, process: int, processes: int) -> None:
        self._process = (process, processes)

    def run(self, replica: NumpyReplica, batch: Tree, coefficients: Any) -> List[float]:
        """Train on the rows of a call; returns each update's sum of the losses."""
        shape = CallShape(self.iterations, self.accumulation, self.replicas)
        rows = len(coefficients) // shape.slices
        losses = [0.0] * self.iterations

        def micro_step(position: Position) -> Dict[str, Any]:
            part = slice(position.slice * rows, (position.slice + 1) * rows)
            x, targets = batch[0][part], batch[1][part]
            outputs, backward = replica.model.forward(x, None)
            value, gradient = replica.values_of(outputs, targets)
            c = coefficients[part].astype(gradient.dtype)
            if replica.weighs_rows:
                value = value.reshape(rows, -1).sum(axis=1)
                gradient = gradient * c.reshape((-1,) + (1,) * (gradient.ndim - 1))
                losses[position.iteration] += float((value * c).sum())
            else:
                gradient = gradient * c[0]
                losses[position.iteration] += float(value * c[0])
            found = backward(gradient)
            # The replicas add up what they hold in the same order, so each holds all of it.
            return {
                name: found.get(name, np.zeros_like(replica.model.parameters[name]))
                for name in replica.slots
            }

        def apply(gradients: Dict[str, Any]) -> None:
            for name, gradient in gradients.items():
                parameter, slots = replica.model.parameters[name], replica.slots[name]
                step(replica.optimizer, parameter, gradient, slots, self.rate)

        kind = "mean_post" if self.reduction == "mean" else "sum"
        process, processes = self._process
        train(
            shape,
            Reduction(kind, self.reduction),
            micro_step,
            apply,
            arithmetic=Arrays(),
            fabric=fabric_of(processes, process),
        )
        return losses


class NoRandomNumbers:
    """Stands in for a generator that a device cannot be given."""

    def __getattr__(self, name: str) -> Any:
        raise CapabilityError(
            NAME, "random layers are not keyed on a device; set their rate to 0 (ipu.random_layers)"
        )


class NumpyDevice:
    """``Engine`` for the model of a job; state, checks and scores are a replica's."""

    def __init__(self, job: Job, plan: Plan, place: Place) -> None:
        self._replica = replica = NumpyReplica(job)
        if job.objective is not None:
            raise CapabilityError(
                NAME, "the weight of an objective is known after forward; pass loss= on a device"
            )
        self._rank = place.rank
        self._is_mean = plan.update.reduction == "mean"
        self._calls = lower_for_device(plan, plan.target).calls
        self.weighs_rows = replica.weighs_rows
        self.micro_batches_at_once = plan.ipu.replicas_per_process
        self.tensors, self.read, self.write = replica.tensors, replica.read, replica.write
        self.scalars, self.load_scalars = replica.scalars, replica.load_scalars
        self.forget_slots, self.close = replica.forget_slots, replica.close
        self.end_call, self.learning_rates = replica.end_call, replica.learning_rates

    def measure(self, micro: MicroBatch) -> Measure:
        replica = self._replica
        replica.model.forward(split(micro.tree)[0], NoRandomNumbers())
        weight = replica.weight_before(micro) or 0.0
        is_mean = replica.reduction == "mean"
        if not self.weighs_rows:
            return Measure(weight, weight if is_mean else 1.0)
        _, targets, sample_weight = split(micro.tree)
        units = replica.job.loss.units(targets) if replica.is_known else np.ones(micro.rows)
        factors = row_factors(micro, sample_weight, units, is_mean=replica.reduction != "sum")
        if replica.is_known and replica.job.weight is not None and is_mean:
            factors = factors * weight / units.sum()
        return Measure(weight, factors)

    def run(self, updates: Sequence[DeviceUpdate], *, lr_factor: float, seed: int) -> DeviceTally:
        del seed  # nothing is random here
        engine = Engine()
        names = {"process_id": self._rank, "rate": self.learning_rates()[0] * lr_factor}
        apply_native_calls(self._calls, {"engine": engine}, names)
        engine.iterations = len(updates)  # a shorter call is another program
        micro_batches = [micro for update in updates for micro in update.micro_batches]
        each = [c for update in updates for c in update.coefficients]
        coefficients = [np.broadcast_to(c, (m.rows,)) for c, m in zip(each, micro_batches)]
        batch = host_batch([micro.tree for micro in micro_batches])
        losses = engine.run(self._replica, batch, np.concatenate(coefficients))
        weights = [update.weight if self._is_mean else 1.0 for update in updates]
        return DeviceTally(float(np.dot(losses, weights)))

    def infer(self, micro_batches: Sequence[MicroBatch]) -> Sequence[Any]:
        forward = self._replica.model.forward
        return [
            forward(m.tree[0] if isinstance(m.tree, (tuple, list)) else m.tree, None)[0]
            for m in micro_batches
        ]

    def score(
        self, micro: MicroBatch, result: Any, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        # On the host no shape is static, so rows of padding are cut off first.
        if micro.sample_weight is not None:
            real = np.asarray(micro.sample_weight) != 0
            tree = tuple(np.asarray(leaf)[real] for leaf in micro.tree)
            micro, result = MicroBatch(micro.index, tree, int(real.sum())), result[real]
        if micro.rows == 0:
            return {"loss": (0.0, 0.0), **dict.fromkeys(metrics, (0.0, 0.0))}
        total, _, weight = self._replica.loss_of(micro, result)
        return {"loss": (total if weight else 0.0, weight), **measured(micro, result, metrics)}

    def outputs(self, result: Any) -> Tree:
        return result

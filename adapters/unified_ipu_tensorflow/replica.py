"""One copy of a TensorFlow model on a host target: forward, backward and the optimizer's step."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import (
    Buffer,
    Copies,
    Job,
    Metric,
    MicroBatch,
    Slot,
    Tally,
    TensorSpec,
    Tree,
)
from unified_ipu.errors import ConfigError
from unified_ipu.events import Counters
from unified_ipu_tensorflow.batches import Batch, read_batch
from unified_ipu_tensorflow.building import ADVICE, build_model, is_built
from unified_ipu_tensorflow.determinism import determinism
from unified_ipu_tensorflow.errors import translated
from unified_ipu_tensorflow.half_kernels import HalfKernels
from unified_ipu_tensorflow.half_precision import check_types
from unified_ipu_tensorflow.model_checks import layers_that_see_the_micro_batch
from unified_ipu_tensorflow.objectives import build_objective
from unified_ipu_tensorflow.parts import Parts
from unified_ipu_tensorflow.tally import Counting


class TensorflowReplica:
    """Drives the user's own model and optimizer, in place.

    Args:
        job: As ``compile`` was given it.
        deterministic: Whether TensorFlow may use deterministic kernels only, until ``close``.
        compute: Type of forward, which the layers of the model have to have.

    Raises:
        ConfigError: If model, loss, optimizer and schedule cannot be driven together.
    """

    def __init__(self, job: Job, *, deterministic: bool = False, compute: str = "float32") -> None:
        check_types(job.model, compute)
        self._job = job
        self._compute = compute
        self.kernels = None if compute == "float32" else HalfKernels()
        self._model = job.model
        self._objective = build_objective(job)
        self.counts_samples = self._objective.counts_rows
        self._counting = Counting()
        self._copies = Copies()
        self.notes: Tuple[str, ...] = layers_that_see_the_micro_batch(job.model)
        self._parts: Optional[Parts] = None
        if is_built(job.model):
            self._parts = Parts(job, self._objective)
        self._is_deterministic = deterministic
        if deterministic:
            determinism.acquire()

    @property
    def is_built(self) -> bool:
        """Whether the model has its variables."""
        return self._parts is not None

    def build_from(self, tree: Tree) -> None:
        """Make the model's variables from an empty batch of the form of the first one.

        Raises:
            ConfigError: If it makes none, or optimizer and ``trainable=`` do not fit them.
        """
        with translated():
            build_model(
                self._model, self._objective, tree, seed=self._job.seed, compute=self._compute
            )
            check_types(self._model, self._compute)
            self._parts = Parts(self._job, self._objective)

    @property
    def _built(self) -> Parts:
        if self._parts is None:
            raise ConfigError(ADVICE)
        return self._parts

    @property
    def traces(self) -> int:
        """How often forward and backward were made a graph: once for each form of batch."""
        return self._built.function.traces

    def tensors(self) -> Sequence[TensorSpec]:
        """Parameters, buffers and the slots that exist now."""
        return self._built.catalog.specs()

    def count_copies(self, counters: Counters) -> None:
        """Count there the batches that cannot be used where they lie."""
        self._copies = Copies(counters)

    def bind(self, slots: Sequence[Slot], gradients: Sequence[Buffer]) -> None:
        """Keep gradients in the reducer's buckets from now on."""
        self._built.bind(slots, gradients)

    def begin_update(self) -> None:
        """Forget gradients and tally of the update before."""
        self._built.gradients.begin()
        self._counting.clear()

    def forward_backward(
        self, micro: MicroBatch, *, scale: float, seed: int, ready: Callable[[int], None]
    ) -> None:
        """Add one micro-batch: ``scale * dS`` to the gradients, S and W to the tally.

        Raises:
            ConfigError: If there is nothing to train, or the loss does not depend on it.
        """
        del ready  # the core reduces after the last micro-batch
        parts = self._built
        parts.training_optimizer()
        with translated():
            batch = self._read(micro)
            weight = self._objective.weight_before(batch)
            if weight == 0.0:
                return
            given = weight if self._objective.takes_weight else None
            done = parts.function(batch.feed(), given, scale=scale, seed=seed)
            # A mean over nothing is NaN, which must not reach the sums.
            if weight is not None or float(np.asarray(done.numbers)[1]) != 0.0:
                parts.gradients.add(done.gradients)
            self._counting.add(done.numbers, done.metrics)

    def _read(self, micro: MicroBatch) -> Batch:
        return read_batch(micro, dtype=self._built.dtype, copies=self._copies)

    def finish_update(self) -> Tally:
        """Read the tally back."""
        with translated():
            return self._counting.read(self._built.gradients.finish())

    def squared_norm(self) -> float:
        """Squared norm of the gradients."""
        return self._built.own.squared_norm()

    def non_finite(self) -> Sequence[str]:
        """Names of trained tensors whose gradient is not finite."""
        return [self._built.names[index] for index in self._built.own.non_finite()]

    def apply(
        self,
        *,
        lr_factor: float,
        used: Sequence[bool],
        scale: float = 1.0,
        owned: Optional[Sequence[bool]] = None,
    ) -> None:
        """Step the optimizer; what no rank used has no gradient, so decay does not move it.

        Raises:
            ConfigError: If the program has no optimizer.
        """
        parts = self._built
        active = used if owned is None else [u and o for u, o in zip(used, owned)]
        with translated():
            gradients = parts.gradients.receive()
            optimizer = parts.training_optimizer()
            optimizer.apply(gradients, active, scale=scale, lr_factor=lr_factor)

    def end_call(self, num_updates: int) -> None:
        """Step the schedule once for each update that happened."""
        if self._built.optimizer is not None:
            self._built.optimizer.end_call(num_updates)

    def learning_rates(self) -> Sequence[float]:
        """Base rates now, one a group."""
        optimizer = self._built.optimizer
        return [] if optimizer is None else optimizer.learning_rates()

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric], *, seed: int
    ) -> Dict[str, Tuple[float, float]]:
        """Loss and metrics of one micro-batch, without a trace in the model."""
        with translated():
            return self._built.evaluation.evaluate(self._read(micro), metrics, seed=seed)

    def predict(self, micro: MicroBatch, *, seed: int) -> Tree:
        """Outputs of one micro-batch as numpy arrays, padding included."""
        with translated():
            return self._built.evaluation.predict(self._read(micro), seed=seed)

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """Copies of the named tensors."""
        return self._built.catalog.read(names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite the named tensors in place."""
        self._built.catalog.write(tensors)

    def scalars(self) -> Dict[str, Any]:
        """Optimizer and schedule without their tensors, as JSON values."""
        optimizer = self._built.optimizer
        own = {} if optimizer is None else optimizer.scalars()
        return {"learning_rates": list(self.learning_rates()), **own}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` returned, in the same optimizer and schedule.

        Raises:
            ConfigError: If it is of another optimizer.
        """
        optimizer = self._built.optimizer
        if optimizer is not None:
            optimizer.load_scalars(scalars)
        elif "optimizer" in scalars:
            raise ConfigError(
                "the state was saved with an optimizer, this program has none; compile it with "
                "the same one"
            )

    def forget_slots(self) -> None:
        """Drop the optimizer's state of every parameter."""
        if self._built.optimizer is not None:
            self._built.optimizer.forget_slots()

    def close(self) -> None:
        """Let go of the reducer's buffers; the model keeps the trained weights."""
        if self._parts is not None:
            self._parts.close()
        if self._is_deterministic:
            self._is_deterministic = False
            determinism.release()

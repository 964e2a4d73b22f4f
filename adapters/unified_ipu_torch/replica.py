"""One copy of a torch model on a host target: forward, backward and the optimizer's step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import torch

from unified_ipu.adapter import (
    Buffer,
    Copies,
    HostMetric,
    Job,
    Metric,
    MicroBatch,
    Slot,
    Tally,
    TensorSpec,
    Tree,
    inputs_of,
    split_batch,
)
from unified_ipu.errors import ConfigError
from unified_ipu.events import Counters
from unified_ipu_torch.batches import (
    Batch,
    call_model,
    read_batch,
    select_rows,
    to_numpy,
)
from unified_ipu_torch.bound_gradients import BoundGradients
from unified_ipu_torch.bystanders import Bystanders
from unified_ipu_torch.determinism import determinism
from unified_ipu_torch.errors import say_more, translated
from unified_ipu_torch.evaluation import evaluation_mode
from unified_ipu_torch.gradients import (
    Gradients,
    OwnGradients,
    StagedGradients,
    squared_norm,
    without_gradient,
)
from unified_ipu_torch.half_kernels import HalfKernels, is_half
from unified_ipu_torch.half_precision import HalfObjective, HalfPrecision
from unified_ipu_torch.model_checks import holds, layers_that_see_the_micro_batch
from unified_ipu_torch.objectives import ModelObjective, Objective, Score, build_objective
from unified_ipu_torch.onnx_export import FirstCall, export_onnx
from unified_ipu_torch.optimizers import (
    build_optimizer,
    check_parameters,
    check_schedule,
    follow_parameters,
    scaled_rates,
)
from unified_ipu_torch.plain_step import plain_step
from unified_ipu_torch.random_numbers import key_generators, keyed_generators
from unified_ipu_torch.tally import Counting, checked_metrics, read_numbers
from unified_ipu_torch.tensors import Catalog, plain_name
from unified_ipu_torch.training_state import TrainingState
from unified_ipu_torch.uncounted import run_uncounted


class TorchReplica:
    """Drives the user's own module and optimizer, in place.

    Args:
        job: As ``compile`` was given it.
        device: Where the model runs; it is moved there.
        deterministic: Whether torch may use deterministic kernels only, until ``close``.
        compute: Type of forward; trained parameters stay float32, whatever it is.
        own_names: What an adapter that made the module itself calls its tensors, by torch's names;
            those left out keep theirs.

    Raises:
        ConfigError: If model, loss, optimizer and schedule cannot be driven together.
    """

    def __init__(
        self,
        job: Job,
        device: torch.device,
        *,
        deterministic: bool = False,
        compute: str = "float32",
        own_names: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._model: torch.nn.Module = job.model.to(device)
        self._device = device
        plain = self._make_objective(job)
        self._model_outputs = plain.outputs if isinstance(plain, ModelObjective) else None
        self._half = None if compute == "float32" else HalfPrecision(compute, device)
        self._objective = plain if self._half is None else HalfObjective(plain, self._half)
        self.kernels = None if self._half is None else HalfKernels()
        self._inference: Any = self._model
        self._first_call = FirstCall(self._model)
        parameters = {plain_name(name): p for name, p in self._model.named_parameters()}
        self._optimizer = build_optimizer(job.optimizer, parameters, job.trainable)
        if self._optimizer is not None:
            follow_parameters(self._optimizer)
        check_schedule(job.schedule, self._optimizer, was_given=self._optimizer is job.optimizer)
        self._plain = None if self._optimizer is None else plain_step(self._optimizer)
        self._schedule = job.schedule
        trained = self._choose_trained(parameters)
        check_parameters(trained)
        if self._half is not None:
            self._half.check(trained)
        self._parameters = list(trained.values())
        self._bystanders = Bystanders(parameters, trained, self._optimizer)
        self._catalog = Catalog(
            self._model, trained=trained, optimizer=self._optimizer, own_names=own_names
        )
        self._trained_names = [
            spec.name for spec in self._catalog.specs() if spec.trainable and spec.tied_to is None
        ]
        self._training = TrainingState(self._optimizer, self._schedule, trained)
        self._gradients: Gradients = OwnGradients(self._parameters)
        self._counting = Counting()
        self._copies = Copies()
        self.counts_samples = self._objective.counts_rows
        self.holds_collectives = any(holds(module) for module in self._model.modules())
        self.notes: Tuple[str, ...] = layers_that_see_the_micro_batch(self._model)
        self._is_deterministic = deterministic
        if deterministic:
            determinism.acquire()

    def _make_objective(self, job: Job) -> Objective:
        return build_objective(job, self._device)

    def _choose_trained(
        self, parameters: Mapping[str, torch.nn.Parameter]
    ) -> Dict[str, torch.nn.Parameter]:
        if self._optimizer is None:
            return {}
        driven = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        trained = {n: p for n, p in parameters.items() if id(p) in driven and p.requires_grad}
        if not trained:
            raise ConfigError(
                "the optimizer has no parameter that requires a gradient; set requires_grad on "
                "what should be trained, or pass optimizer=None to evaluate only"
            )
        return trained

    def tensors(self) -> Sequence[TensorSpec]:
        """Parameters, buffers and the slots that exist now."""
        return self._catalog.specs()

    def count_copies(self, counters: Counters) -> None:
        """Count there the batches that cannot be used where they lie."""
        self._copies = Copies(counters)

    def bind(self, slots: Sequence[Slot], gradients: Sequence[Buffer]) -> None:
        """Keep gradients in the reducer's buckets from now on."""
        self._gradients.close()
        in_place = self._device.type == "cpu" and all(s.permutation is None for s in slots)
        in_place = in_place and not any(is_half(buffer) for buffer in gradients)
        kind = BoundGradients if in_place else StagedGradients
        self._gradients = kind(self._parameters, slots, gradients)

    def begin_update(self) -> None:
        """Forget gradients and tally of the update before."""
        self._gradients.begin()
        self._counting.clear()

    def forward_backward(
        self, micro: MicroBatch, *, scale: float, seed: int, ready: Callable[[int], None]
    ) -> None:
        """Add one micro-batch: ``scale * dS`` to the gradients, S and W to the tally.

        Raises:
            ConfigError: If there is nothing to train, or the loss does not depend on it.
        """
        del ready  # the core reduces after the last micro-batch
        if self._optimizer is None:
            raise ConfigError("this program has no optimizer; pass optimizer= to compile to train")
        try:  # not ``with translated()``, which costs three calls more; as below
            batch = read_batch(micro, self._device, self._copies)
            weight = self._objective.weight_before(batch) if batch.rows else 0.0
            if weight == 0.0 and not self.holds_collectives:
                return
            key_generators(seed, self._device)
            if not self._model.training:
                self._model.train()
            if weight == 0.0:
                self._backward_uncounted(run_uncounted(self._objective, self._model, batch))
                return
            score = self._objective.score(self._model, batch, weight)
            if score.value is not None:
                self._backward(score, score.value, scale)
            elif self.holds_collectives:
                self._backward_uncounted([score.uncounted])
            self._counting.add(score)
        except Exception as error:
            say_more(error)
            raise

    def _backward(self, score: Score, value: torch.Tensor, scale: float) -> None:
        if not value.requires_grad:
            raise ConfigError(
                "the loss does not depend on any parameter that requires a gradient; look for "
                "detach(), no_grad() or a conversion to numpy between model and loss"
            )
        self._gradients.prepare()
        seed = score.factor * scale
        # torch makes the 1 itself, and checks less than where it is given a tensor.
        torch.autograd.backward(value, None if seed == 1.0 else torch.full_like(value, seed))
        self._gradients.collect()

    def _backward_uncounted(self, roots: Sequence[Any]) -> None:
        """Take part in the collectives of backward; adds zeros."""
        able = [root for root in roots if isinstance(root, torch.Tensor) and root.requires_grad]
        self._gradients.prepare()
        torch.autograd.backward(able, [torch.zeros_like(root) for root in able])
        self._gradients.collect()

    def finish_update(self) -> Tally:
        """Read the tally back, and drop what backward left on parameters of other programs."""
        try:
            used = self._gradients.finish()
            self._bystanders.clear()
            return self._counting.read(used)
        except Exception as error:
            say_more(error)
            raise

    def squared_norm(self) -> float:
        """Squared norm of the gradients."""
        return squared_norm([p.grad for p in self._parameters if p.grad is not None])

    def non_finite(self) -> Sequence[str]:
        """Names of trained tensors whose gradient is not finite."""
        return [
            name
            for name, p in zip(self._trained_names, self._parameters)
            if p.grad is not None and not bool(torch.isfinite(p.grad).all())
        ]

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
        if self._optimizer is None:
            raise ConfigError("this program has no optimizer; pass optimizer= to compile to train")
        active = used if owned is None else [u and o for u, o in zip(used, owned)]
        try:
            self._gradients.receive()
            if scale != 1.0:
                present = [
                    p.grad
                    for p, is_active in zip(self._parameters, active)
                    if is_active and p.grad is not None
                ]
                if present:
                    torch._foreach_mul_(present, scale)
            if all(active):
                if self._plain is not None and self._plain.step(lr_factor):
                    return
                if lr_factor == 1.0:
                    self._optimizer.step()
                    return
            with scaled_rates(self._optimizer, lr_factor):
                with without_gradient(self._parameters, active):
                    self._optimizer.step()
        except Exception as error:
            say_more(error)
            raise

    def end_call(self, num_updates: int) -> None:
        """Step the scheduler once for each update that happened."""
        if self._schedule is not None:
            for _ in range(num_updates):
                self._schedule.step()

    def learning_rates(self) -> Sequence[float]:
        """Base rates now, one a parameter group."""
        if self._optimizer is None:
            return []
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric], *, seed: int
    ) -> Dict[str, Tuple[float, float]]:
        """Loss and metrics of one micro-batch, without a trace in the model."""
        with translated(), keyed_generators(seed, self._device), evaluation_mode(self._model):
            batch = read_batch(micro, self._device, self._copies)
            weight = self._objective.weight_before(batch)
            pairs: Dict[str, Tuple[Any, Any]] = {"loss": (0.0, 0.0)}
            outputs = None
            if weight != 0.0:
                score = self._objective.score(self._inference, batch, weight)
                total = 0.0 if score.value is None else score.value.double() * score.factor
                pairs["loss"] = (total, score.weight)
                pairs.update(checked_metrics(score.metrics))
                outputs = score.outputs
            if metrics:
                pairs.update(self._measure(metrics, batch, outputs))
            numbers = read_numbers([number for pair in pairs.values() for number in pair])
        found = {
            name: (numbers[2 * index], numbers[2 * index + 1]) for index, name in enumerate(pairs)
        }
        if found["loss"][1] == 0.0:
            found["loss"] = (0.0, 0.0)  # a mean over nothing is NaN
        return found

    def _measure(
        self, metrics: Mapping[str, Metric], batch: Batch, outputs: Any
    ) -> Dict[str, Tuple[Any, Any]]:
        x, targets, _ = split_batch(batch.tree)
        if outputs is None:
            outputs = self._forward(x)
        if batch.counted is not None:
            outputs = select_rows(outputs, batch.counted)
            targets = select_rows(targets, batch.counted)
        found = {}
        for name, metric in metrics.items():
            if isinstance(metric, HostMetric):
                found[name] = metric(to_numpy(outputs), to_numpy(targets))
            else:
                found[name] = metric(outputs, targets)
        return checked_metrics(found)

    def predict(self, micro: MicroBatch, *, seed: int) -> Tree:
        """Outputs of one micro-batch as numpy arrays, padding included."""
        with translated(), keyed_generators(seed, self._device), evaluation_mode(self._model):
            batch = read_batch(micro, self._device, self._copies)
            if self._model_outputs is not None:
                return to_numpy(self._model_outputs(self._forward(batch.tree)))
            return to_numpy(self._forward(inputs_of(batch.tree)))

    def _forward(self, x: Any) -> Any:
        if self._half is None:
            return call_model(self._inference, x)
        return self._half.call(self._inference, x)

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """Copies of the named tensors."""
        return self._catalog.read(names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite the named tensors in place."""
        self._catalog.write(tensors)

    def scalars(self) -> Dict[str, Any]:
        """Optimizer and scheduler without their tensors, as JSON values."""
        return {"learning_rates": list(self.learning_rates()), **self._training.scalars()}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` returned, in the same optimizer and scheduler."""
        self._training.load_scalars(scalars)

    def forget_slots(self) -> None:
        """Drop the optimizer's state of every parameter."""
        self._training.forget_slots()

    def export_onnx(self, path: Path) -> None:
        """Write the model as it is now as an ONNX file, through the ONNX adapter.

        Raises:
            CapabilityError: If that adapter is missing, or torch cannot export the model.
            ConfigError: If the model was not called yet.
        """
        export_onnx(self._model, self._first_call, path)

    def close(self) -> None:
        """Let go of the reducer's buffers; the model keeps the trained weights."""
        self._first_call.forget()
        self._gradients.close()
        self._gradients = OwnGradients(self._parameters)
        if self._is_deterministic:
            self._is_deterministic = False
            determinism.release()

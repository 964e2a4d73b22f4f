"""The PopTorch device of the core: whole calls through PopTorch's own API, as the plan lowers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import torch

from unified_ipu.adapter import (
    DeviceTally,
    DeviceUpdate,
    Job,
    Measure,
    Metric,
    MicroBatch,
    Place,
    Plan,
    TensorSpec,
    Tree,
    host_batch,
    map_tree,
)
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu.plan import notes_on_random_layers
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.ipu.fleet import Programs
from unified_ipu_torch.ipu.forms import form_of
from unified_ipu_torch.ipu.host_half import CPU, HostHalf
from unified_ipu_torch.ipu.modules import inputs, leaves_of
from unified_ipu_torch.ipu.optimizers import check_clipping, check_native
from unified_ipu_torch.ipu.programs import TrainingProgram
from unified_ipu_torch.ipu.random_layers import random_layers, refusal
from unified_ipu_torch.ipu.sdk import load_sdk
from unified_ipu_torch.lower_ipu import lower_for_ipu

_NO_FLOAT64 = (torch.float64, torch.complex64, torch.complex128)


class TorchDevice:
    """Trains copies of the user's model; the model itself gets the weights when they are read.

    Args:
        job: As ``compile`` was given it.
        plan: Lowered to PopTorch.
        place: Of this process.

    Raises:
        ConfigError: If model, loss, optimizer and schedule cannot be driven together.
        CapabilityError: If the device cannot do what is asked, with the change to make.
    """

    def __init__(self, job: Job, plan: Plan, place: Place) -> None:
        self._host = host = HostHalf(job, CPU)
        self._is_mean = plan.update.reduction == "mean"
        self._sdk = load_sdk(plan.target)
        calls = lower_for_ipu(plan, plan.target).calls
        self._form = form_of(host.objective, job)
        self.weighs_rows = self._form.weighs_rows
        self._may_draw = plan.ipu.random_layers == "native"
        self._check(plan)
        if host.optimizer is not None:
            check_native(host.optimizer)
            check_clipping(host.optimizer, plan)
        self.notes = self._notes(plan)
        self._programs = Programs(
            host,
            self._form,
            sdk=self._sdk,
            calls=calls,
            plan=plan,
            process=place.rank,
        )
        self._has_looked = False

    def _notes(self, plan: Plan) -> Tuple[str, ...]:
        notes = self._host.notes
        if self._host.is_scored_here:
            notes += ("an objective is evaluated on the host, with the device's weights",)
        if plan.ipu.replicas_per_process > 1 and any(True for _ in self._host.model.buffers()):
            notes += ("buffers stay with each replica; PopTorch returns those of one",)
        if random_layers(self._host.model):
            notes += notes_on_random_layers(plan)
        return notes

    @property
    def micro_batches_at_once(self) -> int:
        """Executions of the inference program times replicas."""
        return self._programs.inferences_at_once

    def _check(self, plan: Plan) -> None:
        model = self._host.model
        if self._host.holds_collectives:
            raise CapabilityError(
                NAME, "the model runs collectives of the host in forward, a device cannot"
            )
        if plan.precision.compute != "float32":
            raise CapabilityError(
                NAME, 'half precision is not written for devices; set precision.compute = "float32"'
            )
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dtype in _NO_FLOAT64:
                raise CapabilityError(
                    NAME, f"{name!r} has dtype {tensor.dtype}, which IPUs lack; use model.float()"
                )
        drawing = random_layers(model)
        if drawing and not self._may_draw:
            raise CapabilityError(NAME, refusal(f"layer {drawing[0]!r}"))

    def measure(self, micro: MicroBatch) -> Measure:
        """Count a micro-batch; the first one is also run once on the host, for its shapes.

        Raises:
            CapabilityError: If forward draws random numbers in training, and may not.
        """
        batch = self._host.batch_of(micro)
        if not self._has_looked:
            outputs = self._host.look_at(micro, may_draw=self._may_draw)
            self._form.learn(outputs, batch)
            self._has_looked = True
        return self._form.measure(batch)

    def run(self, updates: Sequence[DeviceUpdate], *, lr_factor: float, seed: int) -> DeviceTally:
        """One call of the program of that length."""
        del seed  # PopTorch's generator has the plan's seed and goes on by itself
        micro_batches = [micro for update in updates for micro in update.micro_batches]
        tree = host_batch([micro.tree for micro in micro_batches])
        whole = [update.weight if self._is_mean else 1.0 for update in updates]
        scale = np.repeat(whole, len(updates[0].micro_batches)).astype(np.float32)
        coefficients = np.concatenate([update.coefficients.reshape(-1) for update in updates])
        program = self._programs.training(len(updates), micro_batches[0].tree)
        rates = [rate * lr_factor for rate in self.learning_rates()]
        arguments = [coefficients.astype(np.float32), scale]
        outputs = program.run(rates, tensors_of([*arguments, *leaves_of(tree)]))
        self._programs.has_trained(program)
        _, loss_sum, *numbers = [float(output.double().sum()) for output in outputs]
        return self._tally(program, loss_sum, numbers, updates)

    def _tally(
        self,
        program: TrainingProgram,
        loss_sum: float,
        numbers: Sequence[float],
        updates: Sequence[DeviceUpdate],
    ) -> DeviceTally:
        pairs = dict(zip(program.module.metric_names, zip(numbers[::2], numbers[1::2])))
        counted = pairs.pop("", None)
        if counted is not None:
            said = float(sum(update.micro_weights.sum() for update in updates))
            if abs(counted[1] - said) > 1e-4 * max(1.0, abs(said)):
                raise ConfigError(
                    f"weight= counted {said:g} in a call, the objective {counted[1]:g}; make the "
                    "two the same number"
                )
        return DeviceTally(loss_sum, pairs)

    def infer(self, micro_batches: Sequence[MicroBatch]) -> Sequence[Any]:
        """Forward of some micro-batches at once."""
        self._programs.pull()
        if self._host.is_scored_here:
            return micro_batches
        returns_loss = self._host.returns_loss
        trees = [inputs(micro.tree, returns_loss=returns_loss) for micro in micro_batches]
        arguments = tensors_of(leaves_of(host_batch(trees)))
        result = self._programs.inference(trees[0], arguments).run(arguments)
        return [_part(result, index, len(trees)) for index in range(len(trees))]

    def score(
        self, micro: MicroBatch, result: Any, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """Loss and metrics from what ``infer`` returned."""
        return self._host.score(micro, result, metrics)

    def outputs(self, result: Any) -> Tree:
        """Outputs as numpy arrays."""
        return self._host.outputs_of(result)

    def end_call(self, num_updates: int) -> None:
        """Step the framework's own scheduler."""
        self._host.end_call(num_updates)

    def learning_rates(self) -> Sequence[float]:
        """Base rates of the groups."""
        return self._host.learning_rates()

    def tensors(self) -> Sequence[TensorSpec]:
        """Parameters, buffers and the slots that exist now."""
        self._programs.pull()
        return self._host.tensors()

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """Copies of what is on the device."""
        self._programs.pull()
        return self._host.read(names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite on the host; the next program takes it over."""
        self._programs.pull()
        self._host.write(tensors)
        self._programs.have_changed()

    def scalars(self) -> Dict[str, Any]:
        """State of optimizer and scheduler that is no tensor."""
        self._programs.pull()
        return self._host.scalars()

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` gave."""
        self._programs.pull()
        self._host.load_scalars(scalars)
        self._programs.have_changed()

    def forget_slots(self) -> None:
        """Drop the optimizer's state."""
        self._programs.pull()
        self._host.forget_slots()
        self._programs.have_changed()

    def hand_back(self) -> None:
        """Put the weights into the user's model."""
        self._programs.pull()

    def export_onnx(self, path: Path) -> None:
        """As of a replica, from the user's model."""
        self._programs.pull()
        self._host.export_onnx(path)

    def close(self) -> None:
        """Leave the device; the user's model has the weights."""
        self._programs.leave()
        self._host.close()


def tensors_of(arrays: Sequence[Any]) -> List[torch.Tensor]:
    """Tensors with memory of their own, as PopTorch wants them."""
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def _part(result: Any, index: int, count: int) -> Any:
    """What one micro-batch gave; a number came back as one of each."""
    if count == 1:
        return result

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.ndim == 1 and leaf.shape[0] == count:
            return leaf[index]
        rows = leaf.shape[0] // count
        return leaf[index * rows : (index + 1) * rows]

    return map_tree(result, cut)

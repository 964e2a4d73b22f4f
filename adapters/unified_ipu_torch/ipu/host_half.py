"""The half of a device's program that stays on the host: the user's model, optimizer and scores."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping

import numpy as np
import torch

from unified_ipu.adapter import Metric, MicroBatch, Tree, map_tree
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_torch.batches import (
    Batch,
    call_model,
    read_batch,
    select_rows,
    to_numpy,
)
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.evaluation import evaluation_mode
from unified_ipu_torch.ipu.modules import inputs
from unified_ipu_torch.ipu.random_layers import Drawing, refusal
from unified_ipu_torch.objectives import ModelObjective, Objective, UserObjective
from unified_ipu_torch.random_numbers import keyed_generators
from unified_ipu_torch.replica import TorchReplica

CPU = torch.device("cpu")


class HostHalf(TorchReplica):
    """Checks model, loss, optimizer and schedule as on hosts, and holds their state."""

    @property
    def model(self) -> torch.nn.Module:
        """The user's."""
        return self._model

    @property
    def objective(self) -> Objective:
        """Of the program."""
        return self._objective

    @property
    def optimizer(self) -> Any:
        """Torch's own, or None."""
        return self._optimizer

    @property
    def returns_loss(self) -> bool:
        """Whether the model returns its loss."""
        return isinstance(self._objective, ModelObjective)

    @property
    def is_scored_here(self) -> bool:
        """Whether evaluation runs the objective, and with it the model, on the host."""
        return isinstance(self._objective, UserObjective)

    def trained(self) -> Dict[str, torch.nn.Parameter]:
        """Trained parameters by their own names."""
        driven = {id(parameter) for parameter in self._parameters}
        return {n: p for n, p in self._model.named_parameters() if id(p) in driven}

    def copied_model(self) -> torch.nn.Module:
        """A copy of the model to train, of which only what is trained needs a gradient.

        Raises:
            ConfigError: If the model cannot be copied.
        """
        try:
            made = copy.deepcopy(self._model)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(
                f"the model cannot be copied ({error}), but each program of a device has a copy: "
                "keep tensors that are computed out of its attributes"
            ) from error
        if not made.training:
            made.train()  # else what the user put into evaluation mode by itself stays so
        trained = self.trained()
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(name in trained)
        return made

    def look_at(self, micro: MicroBatch, *, may_draw: bool) -> Any:
        """Run forward once on the host, changing nothing: outputs tell shapes.

        Raises:
            CapabilityError: If forward draws random numbers in training, and may not.
        """
        batch = self.batch_of(micro)
        with keyed_generators(0, CPU), torch.no_grad():
            if not may_draw:
                drawing = Drawing()
                model = self.copied_model()
                with drawing:
                    self._run(model, batch)
                if drawing.operations:
                    raise CapabilityError(NAME, refusal(f"forward ({drawing.operations[0]})"))
            with evaluation_mode(self._model):
                return self._run(self._model, batch)

    def _run(self, model: torch.nn.Module, batch: Batch) -> Any:
        if isinstance(self._objective, UserObjective):
            return self._objective.function(model, batch.tree)
        return call_model(model, inputs(batch.tree, returns_loss=self.returns_loss))

    @staticmethod
    def batch_of(micro: MicroBatch) -> Batch:
        """The rows as tensors of the host."""
        return read_batch(micro, CPU)

    def score(
        self, micro: MicroBatch, result: Any, metrics: Mapping[str, Metric]
    ) -> Dict[str, Any]:
        """As ``evaluate``, with outputs that a device has computed.

        On the host no shape is static, so rows of padding are cut off first. Out of a loss that a
        model returns they cannot be cut, so such a micro-batch is run once more, here.
        """
        real = without_padding(micro)
        if self.is_scored_here or (self.returns_loss and real is not micro):
            return self.evaluate(real, metrics, seed=0)
        if real is not micro:
            result = select_rows(result, np.asarray(micro.sample_weight) != 0)
        self._inference = lambda *_, **__: result
        try:
            return self.evaluate(real, metrics, seed=0)
        finally:
            self._inference = self._model

    def end_call(self, num_updates: int) -> None:
        """Step the scheduler; it asks whether the optimizer has stepped: the device's did."""
        if self._optimizer is not None and num_updates:
            vars(self._optimizer).update(_opt_called=True, _step_count=1)
        super().end_call(num_updates)

    def outputs_of(self, result: Any) -> Tree:
        """The model's outputs as numpy arrays, without its loss."""
        if self.is_scored_here:
            return self.predict(result, seed=0)
        if isinstance(self._objective, ModelObjective):
            return to_numpy(self._objective.outputs(result))
        return to_numpy(result)

    def write_slots(self, slots: Mapping[str, Any]) -> None:
        """Take over a device's slots; velocities that nothing reads are none of torch's."""
        still = {
            f"{name}/momentum_buffer"
            for name, parameter in self.trained().items()
            for group in self._optimizer.param_groups
            if not group.get("momentum") and any(p is parameter for p in group["params"])
        }
        kept = {name: value for name, value in slots.items() if name not in still}
        if kept:
            self.write(kept)

    def slots(self) -> Dict[str, Any]:
        """Slots that exist, by name."""
        names: List[str] = [spec.name for spec in self.tensors() if spec.role == "slot"]
        return self.read(names)


def without_padding(micro: MicroBatch) -> MicroBatch:
    """The rows that count: the host has no static shapes."""
    counted = None if micro.sample_weight is None else np.asarray(micro.sample_weight) != 0
    if counted is None or counted.all():
        return micro
    tree = map_tree(micro.tree, lambda leaf: np.asarray(leaf)[counted])
    ids = None if micro.ids is None else np.asarray(micro.ids)[counted]
    return MicroBatch(micro.index, tree, int(np.count_nonzero(counted)), None, ids)

"""Compiled programs over copies of one model; which of them has the newest weights.

PopTorch wraps a module for one training, so each length of a call has a copy of its own. Weights
and slots go through the user's model on the host when another program takes over.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import torch

from unified_ipu_torch.ipu.modules import TrainingModule
from unified_ipu_torch.ipu.optimizers import slots_from_device, slots_to_device


class TrainingProgram:
    """One length of a call.

    Args:
        executor: Of PopTorch, over ``module``.
        module: What is compiled.
        optimizer: PopTorch's.
        kind: Name of its class.
        names: Names on the host of trained tensors by the device's.
        sends_rates: Whether the lowering has rates sent before a call.
    """

    def __init__(
        self,
        executor: Any,
        module: TrainingModule,
        optimizer: Any,
        *,
        kind: str,
        names: Mapping[str, str],
        sends_rates: bool,
    ) -> None:
        self.module = module
        self.version = -1
        """Of the weights it holds."""
        self._executor = executor
        self._optimizer = optimizer
        self._kind = kind
        self._names = names
        self._sends_rates = sends_rates

    def run(self, rates: Sequence[float], arguments: Sequence[Any]) -> List[torch.Tensor]:
        """One call; a rate that only changes in a group is never sent."""
        self.attach()
        for group, rate in zip(self._optimizer.param_groups, rates):
            group["lr"] = rate
        if self._sends_rates:
            self._executor.setOptimizer(self._optimizer)
        return list(self._executor(*arguments))

    def attach(self) -> None:
        """Take the device back, if the program was compiled and left it."""
        if self._executor.isCompiled() and not self._executor.isAttachedToDevice():
            self._executor.attachToDevice()

    def detach(self) -> None:
        """Leave the device to another program; all state comes to the host."""
        if self._executor.isCompiled() and self._executor.isAttachedToDevice():
            self._executor.detachFromDevice()

    def take(self, model: torch.nn.Module, slots: Mapping[str, Any]) -> None:
        """Take over the weights of a model, and slots by their names on the host."""
        _copy(model, self.module.model)
        if self._executor.isCompiled() and self._executor.isAttachedToDevice():
            self._executor.copyWeightsToDevice()
        state = slots_to_device(slots, self._kind, self._names)
        now = self._optimizer.state_dict()
        if state is None and not now.get("ipu_state"):
            return
        # What a state does not have, the device keeps: slots to forget are sent as zeros.
        kept = now.get("ipu_state") or {}
        zeros = {name: torch.zeros_like(slot) for name, slot in kept.items()}
        merged = {**zeros, **(state or {})}
        # No values: those of a state would win over the next learning rate.
        self._optimizer.load_state_dict({**now, "ipu_state": merged, "ipu_param": {}})

    def give(self, model: torch.nn.Module) -> Dict[str, Any]:
        """Copy the weights into a model; returns the slots by their names on the host."""
        if self._executor.isCompiled() and self._executor.isAttachedToDevice():
            self._executor.copyWeightsToHostIfNeeded()
        _copy(self.module.model, model)
        state = self._optimizer.state_dict().get("ipu_state") or {}
        return slots_from_device(state, self._kind, self._names)

    def close(self) -> None:
        """Give up program and device."""
        self._executor.destroy()


class InferenceProgram:
    """One form of inputs.

    Args:
        executor: Of PopTorch, over ``module``.
        module: With a copy of the user's model as ``model``.
    """

    def __init__(self, executor: Any, module: Any) -> None:
        self.version = -1
        self._executor = executor
        self._module = module

    def take(self, model: torch.nn.Module) -> None:
        """Take over the weights of a model."""
        _copy(model, self._module.model)
        if self._executor.isCompiled() and self._executor.isAttachedToDevice():
            self._executor.copyWeightsToDevice()

    def run(self, arguments: Sequence[Any]) -> Any:
        """One call."""
        if self._executor.isCompiled() and not self._executor.isAttachedToDevice():
            self._executor.attachToDevice()
        return self._executor(*arguments)

    def detach(self) -> None:
        """Leave the device to another program."""
        if self._executor.isCompiled() and self._executor.isAttachedToDevice():
            self._executor.detachFromDevice()

    def close(self) -> None:
        """Give up program and device."""
        self._executor.destroy()


def _copy(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Overwrite parameters and buffers in place; both are copies of one model."""
    with torch.no_grad():
        for kind in ("named_parameters", "named_buffers"):
            values: Dict[str, torch.Tensor] = dict(getattr(source, kind)())
            for name, tensor in getattr(target, kind)():
                tensor.copy_(values[name].detach())

"""The optimizer of a program: values of its groups, slots of its weights, one update."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.update_rules import (
    FIRST,
    RULES,
    SECOND,
    SGD_RULES,
    THIRD,
    VELOCITY,
    Slots,
    clip_factor,
    new_slots,
)

_SCALE = "lossScaling_FLOAT"
_DTYPES = {
    VELOCITY: "velocity_accum_type",
    FIRST: "first_order_momentum_accum_type",
    SECOND: "second_order_momentum_accum_type",
    THIRD: "second_order_momentum_accum_type",
}


class DeviceOptimizer:
    """Changes the weights of a program.

    Args:
        description: Of the optimizer, as the device sees it.
        hosts: The user's parameters by name.

    Raises:
        Error: If the optimizer holds a parameter that the model does not have.
    """

    def __init__(self, description: Any, hosts: Mapping[str, torch.Tensor]) -> None:
        self._groups = _groups_by_name(description, hosts)
        self._written: Dict[str, Dict[str, float]] = {}
        self.description = description
        self._slots: Dict[str, Slots] = {
            name: new_slots(description.kind.name, host.detach(), self._values(name))
            for name, host in hosts.items()
            if host.requires_grad
        }

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with."""
        written = self._written.get(_SCALE)
        return float(self.description.loss_scaling[0]) if written is None else written[_SCALE]

    def describe(self, description: Any) -> None:
        """Take over new values; they replace those that came with a state.

        Args:
            description: Of the optimizer.
        """
        self.description = description
        self._written = {}

    def update(
        self, weights: Mapping[str, Any], gradients: Mapping[str, torch.Tensor], divisor: int
    ) -> None:
        """Clip by the global norm, and take one step with every weight that has a gradient.

        A weight in no group takes the optimizer's defaults, as in PopTorch. SGD is clipped as in
        PopART: its velocity if it has one, and with the loss scale (without a velocity, the mean
        too) not yet taken out of what is measured.

        Args:
            weights: Of the device, changed in place.
            gradients: Reduced, in float32.
            divisor: What the gradients were divided by after their sum.
        """
        kind, most = self.description.kind.name, float(self.description.fixed["max_grad_norm"])
        work = {name: self._work(name) for name in gradients}
        values = {name: self._values(name) for name in gradients}
        old = {name: weights[name].detach().float() for name in gradients}
        vectors, step = dict(gradients), RULES.get(kind)
        if step is None:
            updater, step = SGD_RULES[kind]
            vectors = {
                name: updater(old[name], gradient, work[name], values[name])
                for name, gradient in gradients.items()
            }
            has_velocity = any(VELOCITY in slots for slots in work.values())
            most /= self.loss_scale * (1 if has_velocity else divisor)
        factor = clip_factor(vectors, most)
        for name, vector in vectors.items():
            clipped = vector if factor == 1.0 else vector * factor
            weights[name].data.copy_(step(old[name], clipped, work[name], values[name]))
            self._keep(name, work[name])

    def _work(self, name: str) -> Slots:
        return {prefix: slot.float() for prefix, slot in self._slots.get(name, {}).items()}

    def _keep(self, name: str, work: Slots) -> None:
        fixed = self.description.fixed
        self._slots[name] = {
            prefix: slot.to(fixed.get(_DTYPES.get(prefix), torch.float32))
            for prefix, slot in work.items()
        }

    def _values(self, name: str) -> Dict[str, Any]:
        group = self._groups.get(name)
        described = self.description.defaults if group is None else self.description.groups[group]
        values = {key: value for key, (value, _) in described.items()}
        momentum, is_constant = described.get("momentum", (0.0, True))
        values["has_velocity"] = bool(momentum) or not is_constant
        values["use_tf_variant"] = self.description.fixed["use_tf_variant"]
        _overwrite(values, self._written.get(name, {}), self.loss_scale)
        return values

    def read_state(self) -> Dict[str, Any]:
        """Slots and values under PopART's names."""
        state = {
            f"{prefix}{name}": slot.clone()
            for name, slots in self._slots.items()
            for prefix, slot in slots.items()
        }
        values = {_SCALE: torch.tensor(self.loss_scale)}
        for name in self._groups:
            kind, own = self.description.kind.name, self._values(name)
            for key, value in _parameters_of(kind, own, self.loss_scale):
                values[f"{key}___specific___{name}"] = torch.tensor(value)
        return {"ipu_state": state, "ipu_param": values}

    def write_state(self, state: Mapping[str, Any], names: List[str]) -> None:
        """Take over slots and values; those that the state does not have stay as they are.

        The values hold until ``describe`` brings others: also if an optimizer's were newer.

        Args:
            state: What ``read_state`` gave.
            names: Of the weights.

        Raises:
            Error: If a slot belongs to no weight.
        """
        for key, slot in state["ipu_state"].items():
            prefix, name = _split(key)
            if name not in names:
                raise Error(f"the optimizer's state has {key}, but the model no parameter {name}")
            self._slots.setdefault(name, {})[prefix] = slot.clone()
        for key, value in state["ipu_param"].items():
            own, _, name = key.partition("___specific___")
            self._written.setdefault(name or own, {})[own] = float(value)


def _overwrite(values: Dict[str, Any], written: Mapping[str, float], scale: float) -> None:
    """Undo ``_parameters_of``: values of a group from what PopART keeps of them."""
    values["lr"] = written.get("learningRate", values["lr"])
    values["weight_decay"] = written.get("weightDecay", values["weight_decay"])
    kept = 1.0 - float(values.get("dampening", 0.0))
    if "scaledLearningRate0" in written:
        values["lr"] = written["scaledLearningRate0"] * scale / kept
    if "weightDecayScaleFactor0" in written and values["lr"]:
        values["weight_decay"] = (1.0 - written["weightDecayScaleFactor0"]) / (values["lr"] * kept)


def _parameters_of(kind: str, values: Mapping[str, Any], scale: float) -> List[Tuple[str, float]]:
    """What PopART keeps of a group's values, under its names."""
    rate, decay = float(values["lr"]), float(values["weight_decay"])
    if not kind.startswith("SGD"):
        return [("learningRate", rate), ("weightDecay", decay)]
    kept = rate * (1.0 - float(values["dampening"]))
    return [("scaledLearningRate0", kept / scale), ("weightDecayScaleFactor0", 1.0 - kept * decay)]


def _split(key: str) -> Tuple[str, str]:
    prefix, _, name = key.partition("___")
    return f"{prefix}___", name


def _groups_by_name(description: Any, hosts: Mapping[str, torch.Tensor]) -> Dict[str, int]:
    names = {tensor.data_ptr(): name for name, tensor in hosts.items()}
    found: Dict[str, int] = {}
    for index, parameters in enumerate(description.parameters):
        for parameter in parameters:
            name = names.get(parameter.data_ptr())
            if name is None:
                raise Error(
                    f"group {index} of the optimizer holds a parameter of shape "
                    f"{tuple(parameter.shape)} that the model does not have; make the optimizer "
                    "from the parameters of the wrapped model"
                )
            found[name] = index
    return found

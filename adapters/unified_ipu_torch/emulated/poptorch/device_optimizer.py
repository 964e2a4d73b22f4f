"""The optimizer of a program: values of its groups, slots of its weights, one update."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from unified_ipu_torch.emulated.poptorch.errors import Error
from unified_ipu_torch.emulated.poptorch.update_rules import (
    FIRST,
    RULES,
    SECOND,
    THIRD,
    VELOCITY,
    Slots,
    clip_factor,
)

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
        self._slots: Dict[str, Slots] = {}
        self._groups = _groups_by_name(description, hosts)
        self.description = description

    def update(self, weights: Mapping[str, Any], gradients: Mapping[str, torch.Tensor]) -> None:
        """Clip by the global norm, and take one step with every weight that has a gradient.

        A weight in no group takes the optimizer's defaults, as in PopTorch.

        Args:
            weights: Of the device, changed in place.
            gradients: Reduced, in float32.
        """
        fixed = self.description.fixed
        factor = clip_factor(gradients, fixed["max_grad_norm"])
        rule = RULES[self.description.kind.name]
        for name, gradient in gradients.items():
            slots = self._slots.setdefault(name, {})
            work = {prefix: slot.float() for prefix, slot in slots.items()}
            clipped = gradient if factor == 1.0 else gradient * factor
            new = rule(weights[name].detach().float(), clipped, work, self._values(name))
            weights[name].data.copy_(new)
            for prefix, slot in work.items():
                slots[prefix] = slot.to(fixed.get(_DTYPES.get(prefix), torch.float32))

    def _values(self, name: str) -> Dict[str, Any]:
        group = self._groups.get(name)
        described = self.description.defaults if group is None else self.description.groups[group]
        values = {key: value for key, (value, _) in described.items()}
        momentum, is_constant = described.get("momentum", (0.0, True))
        values["has_velocity"] = bool(momentum) or not is_constant
        values["use_tf_variant"] = self.description.fixed["use_tf_variant"]
        return values

    def read_state(self) -> Dict[str, Any]:
        """Slots and values under PopART's names."""
        state = {
            f"{prefix}{name}": slot.clone()
            for name, slots in self._slots.items()
            for prefix, slot in slots.items()
        }
        values = {
            f"{key}___group{index}": torch.tensor(float(value))
            for index, group in enumerate(self.description.groups)
            for key, (value, _) in group.items()
        }
        values["lossScaling"] = torch.tensor(float(self.description.loss_scaling[0]))
        return {"ipu_state": state, "ipu_param": values}

    def write_state(self, state: Mapping[str, Any], names: List[str]) -> None:
        """Take over slots.

        Args:
            state: What ``read_state`` gave.
            names: Of the weights.

        Raises:
            Error: If a slot belongs to no weight.
        """
        self._slots = {}
        for key, slot in state["ipu_state"].items():
            prefix, name = _split(key)
            if name not in names:
                raise Error(f"the optimizer's state has {key}, but the model no parameter {name}")
            self._slots.setdefault(name, {})[prefix] = slot.clone()


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

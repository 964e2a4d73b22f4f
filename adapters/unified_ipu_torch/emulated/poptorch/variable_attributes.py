"""Which attributes of an optimizer may change after compilation, and the state read from a device.

Source: PopTorch 3.4, ``python/optim.py``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import torch

from unified_ipu_torch.emulated.poptorch.errors import require


class VariableAttributes:
    """The attributes that are sent again with each ``setOptimizer``; all others are constants.

    Args:
        variable_attributes: Those that are variable at first.
        allowed_attributes: All there are.
    """

    def __init__(self, variable_attributes: List[str], allowed_attributes: List[str]) -> None:
        self._variable_attributes = variable_attributes
        self._allowed_attributes = allowed_attributes

    def isConstant(self, attr: str) -> bool:
        """Whether it is compiled in."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Compile it in; refuses an unknown name."""
        self._check(attr)
        self._variable_attributes = [name for name in self._variable_attributes if name != attr]

    def markAsVariable(self, attr: str) -> None:
        """Send it with each ``setOptimizer``; refuses an unknown name."""
        self._check(attr)
        self._variable_attributes.append(attr)

    def _check(self, attr: str) -> None:
        require(
            attr in self._allowed_attributes,
            f"Unknown attribute {attr}, allowed values: {self._allowed_attributes}",
        )


class Optimizer:
    """What PopTorch's optimizers have besides torch's: a state that lives on the device.

    ``ipu_state_is_dirty``: the state here is newer; ``host_state_is_dirty``: that of the device is.
    """

    _child_vars: List[str]
    _child_only: List[str]
    _group_vars: List[str]
    _state_dict: Dict[str, Any]
    defaults: Dict[str, Any]
    variable_attrs: VariableAttributes

    def __init__(self) -> None:
        self._state_dict = {"ipu_state": None, "ipu_param": None}
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False

    def state_dict(self) -> Dict[str, Any]:
        """The state; an executor that trains reads it from the device first."""
        return self.get_state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a state; the executor sends it with its next call.

        Args:
            state_dict: What ``state_dict`` gave.

        Raises:
            RuntimeError: If it is empty, or the state of an optimizer of the host.
        """
        torch.optim.Optimizer.load_state_dict(self, dict(state_dict))  # type: ignore[arg-type]  # mixed in
        self.set_state_dict(state_dict)

    def get_state_dict(self) -> Dict[str, Any]:
        """The state as it is here."""
        return {**self._state_dict, **torch.optim.Optimizer.state_dict(self)}  # type: ignore[arg-type]  # mixed in

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state.

        Args:
            state: What ``state_dict`` gave.

        Raises:
            RuntimeError: If it is empty, or the state of an optimizer of the host.
        """
        if not state:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        if "ipu_state" not in state or "ipu_param" not in state:
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        self._state_dict = {name: state[name] for name in ("ipu_state", "ipu_param")}
        self.ipu_state_is_dirty = True
        self.host_state_is_dirty = False

    def has_state(self) -> bool:
        """Whether there is a state of a device."""
        return all(self._state_dict[name] is not None for name in ("ipu_state", "ipu_param"))

    def __getstate__(self) -> Dict[str, Any]:
        state = dict(torch.optim.Optimizer.__getstate__(self))  # type: ignore[arg-type]  # mixed in
        for name in ("variable_attrs", "_state_dict", *self._child_only):
            if hasattr(self, name):
                state[name] = getattr(self, name)
        # The copy belongs to no executor: what it has is newer than any device.
        state["ipu_state_is_dirty"] = self.has_state()
        state["host_state_is_dirty"] = False
        return state

"""How PopTorch's optimizers take their arguments: torch's own, extra ones, and which were given.

Source: PopTorch 3.4, ``python/optim.py``.
"""

from __future__ import annotations

from typing import Any, Dict

import torch

from unified_ipu_torch.emulated.poptorch.errors import require
from unified_ipu_torch.emulated.poptorch.variable_attributes import VariableAttributes

ACCUM = "accum_type"
FIRST, SECOND = "first_order_momentum_accum_type", "second_order_momentum_accum_type"
_NOT_OURS = ("self", "__class__", "params")
_EXTRA_DEFAULTS: Dict[str, Any] = {
    "loss_scaling": 1.0,
    "use_combined_accum": False,
    ACCUM: torch.float32,
    "velocity_accum_type": torch.float32,
    FIRST: torch.float32,
    SECOND: torch.float32,
    "max_grad_norm": float("inf"),
    "bias_correction": True,
    "use_tf_variant": False,
}


def given_of(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments that the caller passed: those are variable, the rest is compiled in.

    Args:
        arguments: The ``locals()`` of a constructor.
    """
    return {k: v for k, v in arguments.items() if v is not None and k not in _NOT_OURS}


def of_parent(optimizer: Any, given: Dict[str, Any]) -> Dict[str, Any]:
    """Those of the arguments that torch's own class takes.

    Args:
        optimizer: Whose class tells the extra ones.
        given: All that were passed.
    """
    return {k: v for k, v in given.items() if k not in optimizer._child_only}


def set_extras(optimizer: Any, given: Dict[str, Any]) -> None:
    """Set the extra attributes, with their defaults, and which of all are variable.

    Args:
        optimizer: Constructed by torch already.
        given: All arguments that were passed.

    Raises:
        AssertionError: If gradients or moments are to be kept in another dtype than the two known.
    """
    for name in optimizer._child_only:
        if name not in optimizer._group_vars:
            setattr(optimizer, name, given.get(name, _EXTRA_DEFAULTS[name]))
        if name.endswith(ACCUM):
            require(
                getattr(optimizer, name) in {torch.float16, torch.float32},
                "Accumulation types must be either torch.float32 or torch.float16",
            )
    known = [*optimizer.defaults, *optimizer._child_vars]
    optimizer.variable_attrs = VariableAttributes(["params", *given], known)

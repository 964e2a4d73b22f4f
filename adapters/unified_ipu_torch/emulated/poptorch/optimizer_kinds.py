"""Which update rule of the device an optimizer stands for.

Source: PopTorch 3.4, ``python/_optimizer_attributes.py``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Callable, Tuple

import torch

from unified_ipu_torch.emulated.poptorch import optim
from unified_ipu_torch.emulated.poptorch.errors import require
from unified_ipu_torch.emulated.poptorch.log import logger


class OptimizerType(IntEnum):
    """What PopART would be asked for; SGD1 accumulates into the velocity, SGD2 apart."""

    SGD1 = 0
    SGD2 = 1
    ADAM = 2
    ADAMW = 3
    ADAMW_NO_BIAS = 4
    RMSPROP = 5
    RMSPROP_CENTERED = 6
    LAMB = 7
    LAMB_NO_BIAS = 8


_CLASSES = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop),
    *(optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB),
)


def kind_of(optimizer: Any) -> OptimizerType:
    """Which update rule of the device an optimizer stands for.

    Args:
        optimizer: Of torch or of ``poptorch.optim``, or of a class made from one.

    Returns:
        The kind.

    Raises:
        AssertionError: If there is none.
    """
    if type(optimizer) not in _CLASSES and isinstance(optimizer, _CLASSES):
        logger.warning(
            "Optimizer `%s` is of a subclass of those in poptorch.optim or torch.optim, which is "
            "unlikely to behave as intended. Poptorch does not run Python optimizer code directly: "
            "the IPU has optimizers of its own.",
            type(optimizer).__name__,
        )
    for kind, choose in _KINDS:
        if isinstance(optimizer, kind):
            return choose(optimizer)
    names = ", ".join(member.name for member in OptimizerType)
    raise AssertionError(f"Unsupported optimizer type. Types supported {names}")


def class_of(kind: OptimizerType) -> Any:
    """The class of ``poptorch.optim`` that has this update rule."""
    name = kind.name.rstrip("12").replace("_NO_BIAS", "").replace("_CENTERED", "")
    return getattr(optim, {"ADAM": "Adam", "ADAMW": "AdamW", "RMSPROP": "RMSprop"}.get(name, name))


def _sgd(optimizer: Any) -> OptimizerType:
    is_combined = getattr(optimizer, "use_combined_accum", False)
    return OptimizerType.SGD1 if is_combined else OptimizerType.SGD2


def _adamw(optimizer: Any) -> OptimizerType:
    has_bias = getattr(optimizer, "bias_correction", True)
    return OptimizerType.ADAMW if has_bias else OptimizerType.ADAMW_NO_BIAS


def _rmsprop(optimizer: Any) -> OptimizerType:
    centered = [group["centered"] for group in optimizer.param_groups]
    require(
        len(set(centered)) == 1,
        f"All parameter groups must have the same value for the 'centered' attribute: {centered}",
    )
    return OptimizerType.RMSPROP_CENTERED if centered[0] else OptimizerType.RMSPROP


def _lamb(optimizer: Any) -> OptimizerType:
    has_bias = getattr(optimizer, "bias_correction", True)
    return OptimizerType.LAMB if has_bias else OptimizerType.LAMB_NO_BIAS


# AdamW before Adam: in newer versions of torch it is made from it.
_KINDS: Tuple[Tuple[Any, Callable[[Any], OptimizerType]], ...] = (
    (torch.optim.SGD, _sgd),
    (torch.optim.AdamW, _adamw),
    (torch.optim.Adam, lambda _: OptimizerType.ADAM),
    (torch.optim.RMSprop, _rmsprop),
    (optim.LAMB, _lamb),
)

"""torch's losses as text: one value a row, and the weight of each row in W."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from unified_ipu.adapter import losses
from unified_ipu.errors import CapabilityError
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.losses import CLASSES, ELEMENTS, ROWS, as_module, denominator, module_of

_ARGUMENTS: Dict[type, Tuple[str, ...]] = {
    nn.CrossEntropyLoss: ("weight", "ignore_index", "label_smoothing"),
    nn.NLLLoss: ("weight", "ignore_index"),
    nn.MSELoss: (),
    nn.L1Loss: (),
    nn.SmoothL1Loss: ("beta",),
    nn.HuberLoss: ("delta",),
    nn.BCELoss: (),
    nn.BCEWithLogitsLoss: ("pos_weight",),
    nn.SoftMarginLoss: (),
    nn.PoissonNLLLoss: ("log_input", "full", "eps"),
    nn.KLDivLoss: ("log_target",),
}
"""What each is made with beside its reduction; other losses are not written."""

_CLASS_UNITS = '''\
def units_of(targets):
    """Return each row's weight in W: its targets that are not ignored."""
    counted = targets != {ignored}
    return counted.reshape(len(targets), -1).sum(axis=1).astype(np.float64)
'''

_CLASS_WEIGHTS = '''\
def units_of(targets):
    """Return each row's weight in W: the class weights of its targets that are not ignored."""
    weights = np.array({weights}, np.float32)
    units = np.where(targets == {ignored}, 0.0, weights[np.clip(targets, 0, {last})])
    return units.reshape(len(targets), -1).sum(axis=1).astype(np.float64)
'''

_ELEMENT_UNITS = '''\
def units_of(targets):
    """Return each row's weight in W: its number of elements."""
    return np.full(len(targets), targets[0].size, np.float64)
'''

_ROW_UNITS = '''\
def units_of(targets):
    """Return each row's weight in W."""
    return np.ones(len(targets))
'''


def loss_text(loss: Any, write: Callable[[Any, str], str]) -> Tuple[str, str, bool]:
    """Write a loss.

    Args:
        loss: As ``session.compile`` got it.
        write: Values as text.

    Returns:
        An expression that makes the loss with one value a unit, the function ``units_of``, and
        whether targets are class indices.

    Raises:
        CapabilityError: If it is a loss that is not written, with those that are.
    """
    module = as_module(loss)
    if isinstance(module, losses.OutputLoss):
        if module.output is not None:
            raise CapabilityError(NAME, "a loss of one of several outputs is not written")
        module = module_of(module, torch.float32)
    arguments = _ARGUMENTS.get(type(module))
    words = denominator(module)
    if arguments is None or words not in {CLASSES, ELEMENTS, ROWS}:
        names = ", ".join(kind.__name__ for kind in _ARGUMENTS)
        raise CapabilityError(
            NAME, f"loss= is a {type(module).__name__}; those that are written: {names}"
        )
    if isinstance(module, (nn.BCELoss, nn.BCEWithLogitsLoss)) and module.weight is not None:
        raise CapabilityError(NAME, "weight= of a binary cross-entropy is not written")
    given = [*_given(module, arguments, write), 'reduction="none"']
    expression = f"torch.nn.{type(module).__name__}({', '.join(given)})"
    return expression, _units(module, words), words == CLASSES


def _given(module: Any, names: Tuple[str, ...], write: Callable[[Any, str], str]) -> List[str]:
    plain = type(module)()
    found = []
    for name in names:
        value = getattr(module, name)
        if isinstance(value, torch.Tensor):
            found.append(f"{name}=torch.tensor({value.tolist()!r})")
        elif value != getattr(plain, name):
            found.append(f"{name}={write(value, f'loss.{name}')}")
    return found


def _units(module: Any, words: str) -> str:
    if words == ROWS:
        return _ROW_UNITS
    if words == ELEMENTS:
        return _ELEMENT_UNITS
    if module.weight is None:
        return _CLASS_UNITS.format(ignored=module.ignore_index)
    weights = module.weight.tolist()
    return _CLASS_WEIGHTS.format(
        weights=weights, ignored=module.ignore_index, last=len(weights) - 1
    )

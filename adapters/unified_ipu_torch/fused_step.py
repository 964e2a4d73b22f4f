"""A step of a fused optimizer that belongs to us, without what torch does around the kernel.

``Optimizer.step`` looks at hooks, opens a profiler range and gathers parameters and state anew each
time: some 50 us beside a kernel of 10 on a small model. Nobody else holds the optimizer that stands
for a value of ``ui.optim``, so the same functions of torch are called on lists gathered once.

Source: ``torch.optim.sgd.sgd``, ``adam.adam`` and ``adamw.adamw``, which are public functions of
their modules; the same bits as ``Optimizer.step`` are held by ``test_fused_step.py``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

_Keywords = Callable[[Dict[str, Any]], Dict[str, Any]]


class FusedStep:
    """Steps an optimizer made by us with ``fused=True`` and one group.

    Args:
        optimizer: ``torch.optim.SGD``, ``Adam`` or ``AdamW``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._group: Dict[str, Any] = optimizer.param_groups[0]
        self._parameters: List[torch.nn.Parameter] = self._group["params"]
        self._kernel, self._slots, self._keywords = _KINDS[type(optimizer)]
        self._state: Optional[Tuple[List[Any], ...]] = None

    def forget(self) -> None:
        """Gather the state anew next time: its tensors may have been replaced."""
        self._state = None

    def step(self, lr_factor: float) -> bool:
        """Change all parameters by their ``.grad``; False if torch's own step has to.

        Args:
            lr_factor: Multiplies the rate of the group in this step.
        """
        if self._state is None:
            self._state = self._gathered()
        state = self._state
        if state is None:
            return False
        gradients: List[Any] = [parameter.grad for parameter in self._parameters]
        for gradient in gradients:
            if gradient is None:
                return False
        group = self._group
        with torch.no_grad():
            self._kernel(
                self._parameters,
                gradients,
                *state,
                lr=group["lr"] * lr_factor,
                **self._keywords(group),
            )
        return True

    def _gathered(self) -> Optional[Tuple[List[Any], ...]]:
        """Columns of state, None while a parameter has none: its first step is torch's."""
        if self._kernel is _sgd and not self._group["momentum"]:
            return ([None] * len(self._parameters),)
        states = [self._optimizer.state.get(parameter) for parameter in self._parameters]
        columns: List[List[Any]] = []
        for slot in self._slots:
            column = [None if state is None else state.get(slot) for state in states]
            if any(value is None for value in column):
                return None
            columns.append(column)
        return tuple(columns)


def fused_step(optimizer: Any) -> Optional[FusedStep]:
    """Return how to step one of our own optimizers fast, or None where torch has no such kernel.

    Args:
        optimizer: Made by us from a value of ``ui.optim``, so that nobody else holds it.
    """
    groups = optimizer.param_groups
    if type(optimizer) in _KINDS and len(groups) == 1 and groups[0].get("fused"):
        return FusedStep(optimizer)
    return None


def _sgd(parameters: Any, gradients: Any, buffers: Any, **keywords: Any) -> None:
    sgd(parameters, gradients, buffers, fused=True, **keywords)


def _adam(parameters: Any, gradients: Any, first: Any, second: Any, steps: Any, **kw: Any) -> None:
    adam(parameters, gradients, first, second, [], steps, fused=True, amsgrad=False, **kw)


def _adamw(parameters: Any, gradients: Any, first: Any, second: Any, steps: Any, **kw: Any) -> None:
    adamw(parameters, gradients, first, second, [], steps, fused=True, amsgrad=False, **kw)


def _sgd_keywords(group: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "weight_decay": group["weight_decay"],
        "momentum": group["momentum"],
        "dampening": group["dampening"],
        "nesterov": group["nesterov"],
        "maximize": False,
    }


def _adam_keywords(group: Dict[str, Any]) -> Dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {
        "beta1": beta1,
        "beta2": beta2,
        "weight_decay": group["weight_decay"],
        "eps": group["eps"],
        "maximize": False,
    }


_KINDS: Dict[type, Tuple[Callable[..., None], Tuple[str, ...], _Keywords]] = {
    torch.optim.SGD: (_sgd, ("momentum_buffer",), _sgd_keywords),
    torch.optim.Adam: (_adam, ("exp_avg", "exp_avg_sq", "step"), _adam_keywords),
    torch.optim.AdamW: (_adamw, ("exp_avg", "exp_avg_sq", "step"), _adam_keywords),
}

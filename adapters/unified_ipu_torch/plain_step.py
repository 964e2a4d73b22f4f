"""One step of SGD, Adam or AdamW without what torch's ``Optimizer.step`` does around the kernel.

It looks at hooks and opens a profiler range: some 50 us beside a kernel of 10 on a small model.
Where nothing of that is used, the same functions of torch are called with the same arguments.
Everything is read from the optimizer anew at each step, so a user may change it as ever.

Source: ``torch.optim.sgd.sgd``, ``adam.adam`` and ``adamw.adamw``, which are public functions of
their modules; the same bits as ``Optimizer.step`` are held by ``test_plain_step.py``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.optim import optimizer as torch_optimizer
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

_Group = Dict[str, Any]
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


class PlainStep:
    """Steps one optimizer.

    Args:
        optimizer: ``torch.optim.SGD``, ``Adam`` or ``AdamW`` itself, no subclass.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._slots, self._kernel = _KINDS[type(optimizer)]

    def step(self, lr_factor: float) -> bool:
        """Change every parameter that has a gradient.

        Args:
            lr_factor: Multiplies the rates of all groups in this step.

        Returns:
            False if torch's own step has to do it; then nothing was changed.
        """
        optimizer = self._optimizer
        if self._is_watched():
            return False
        state, slots = optimizer.state, self._slots
        work = []
        for group in optimizer.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            states = [state.get(p) for p in parameters]
            columns = _columns(group, states, slots)
            if columns is None or not isinstance(group["lr"], float):
                return False
            if parameters:
                work.append((group, parameters, columns))
        with torch.no_grad():
            for group, parameters, columns in work:
                gradients = [p.grad for p in parameters]
                self._kernel(group, parameters, gradients, columns, group["lr"] * lr_factor)
        return True

    def _is_watched(self) -> bool:
        """Whether somebody expects ``Optimizer.step``: hooks, a profiler, a scheduler's wrapper."""
        mine = self._optimizer.__dict__
        if "step" in mine or _is_profiled():
            return True
        return any(mine.get(name) for name in _HOOKS) or any(_global_hooks)


def plain_step(optimizer: Any) -> Optional[PlainStep]:
    """Return how to step an optimizer without detours, or None where only torch can do it."""
    # Older ones have no such kernels for SGD.
    groups = optimizer.param_groups
    is_known = type(optimizer) in _KINDS and "fused" in groups[0]
    if type(optimizer) is torch.optim.Adam and any(g.get("decoupled_weight_decay") for g in groups):
        return None
    return PlainStep(optimizer) if is_known else None


# torch has no public name for it.
_is_profiled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled")  # noqa: B009
_global_hooks: Tuple[Dict[Any, Any], ...] = tuple(
    getattr(torch_optimizer, name) for name in _GLOBAL_HOOKS if hasattr(torch_optimizer, name)
)


def _columns(
    group: _Group, states: Sequence[Optional[Dict[str, Any]]], slots: Sequence[str]
) -> Optional[List[List[Any]]]:
    """State by slot; None before a parameter's first step, and for settings with more state."""
    if group["differentiable"] or any(group.get(name) for name in _MORE_STATE):
        return None
    if slots == _MOMENTUM and not group["momentum"]:
        return [[None] * len(states)]
    try:
        columns = [[state[slot] for state in states] for slot in slots]  # type: ignore[index]
    except (KeyError, TypeError):
        return None
    for value in columns[0]:  # not ``in``, which would compare tensors
        if value is None:
            return None
    return columns


def _sgd(group: _Group, parameters: Any, gradients: Any, columns: Any, lr: float) -> None:
    sgd(
        parameters,
        gradients,
        columns[0],
        foreach=group["foreach"],
        fused=group["fused"],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=lr,
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
    )


def _adam(group: _Group, parameters: Any, gradients: Any, columns: Any, lr: float) -> None:
    _by_moments(adam, group, parameters, gradients, columns, lr=lr)


def _adamw(group: _Group, parameters: Any, gradients: Any, columns: Any, lr: float) -> None:
    _by_moments(adamw, group, parameters, gradients, columns, lr=lr)


def _by_moments(
    kernel: Callable[..., None],
    group: _Group,
    parameters: Any,
    gradients: Any,
    columns: Any,
    *,
    lr: float,
) -> None:
    first, second, steps = columns
    beta1, beta2 = group["betas"]
    kernel(
        parameters,
        gradients,
        first,
        second,
        [],
        steps,
        foreach=group["foreach"],
        fused=group["fused"],
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=lr,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )


_MORE_STATE = ("amsgrad", "capturable")
_MOMENTUM = ("momentum_buffer",)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_KINDS: Dict[type, Tuple[Sequence[str], Callable[..., None]]] = {
    torch.optim.SGD: (_MOMENTUM, _sgd),
    torch.optim.Adam: (_MOMENTS, _adam),
    torch.optim.AdamW: (_MOMENTS, _adamw),
}

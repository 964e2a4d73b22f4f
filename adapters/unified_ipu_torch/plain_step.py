"""One step of SGD, Adam or AdamW without what torch's ``Optimizer.step`` does around the kernel.

It looks at hooks and opens a profiler range: some 50 us beside a kernel of 10 on a small model.
Where nothing of that is used, the same functions of torch are called with the same arguments; for
SGD on the CPU the same operations in the same order, since the function around them costs as much.
Everything is read from the optimizer anew at each step, so a user may change it as ever.

Source: ``torch.optim.sgd.sgd``, ``adam.adam`` and ``adamw.adamw``, which are public functions of
their modules; the same bits as ``Optimizer.step`` are held by ``test_plain_step.py``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

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
        if self._is_watched():
            return False
        state = self._optimizer.state
        entries = iter(state.items())
        work = []
        for group in self._optimizer.param_groups:
            if not _has_known_state(group):
                return False
            slots = () if self._slots is _MOMENTUM and not group["momentum"] else self._slots
            found = _gathered(group["params"], slots, state, entries)
            if found is None:
                return False
            if found[0]:
                work.append((group, *found))
        was_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        try:
            for group, parameters, gradients, columns in work:
                self._kernel(group, parameters, gradients, columns, group["lr"] * lr_factor)
        finally:
            torch.set_grad_enabled(was_enabled)
        return True

    def _is_watched(self) -> bool:
        """Whether somebody expects ``Optimizer.step``: hooks, a profiler, a scheduler's wrapper."""
        mine = self._optimizer.__dict__
        if "step" in mine or _is_profiled():
            return True
        before, after = _HOOKS
        return bool(mine.get(before) or mine.get(after) or any(_global_hooks))


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


def _has_known_state(group: _Group) -> bool:
    """Whether the kernels here know all that a group's settings keep, and how."""
    more = group["differentiable"] or group.get("amsgrad") or group.get("capturable")
    return not more and isinstance(group["lr"], float)


def _gathered(
    candidates: Sequence[Any], slots: Sequence[str], state: Any, entries: Iterator[Any]
) -> Optional[Tuple[List[Any], List[Any], List[List[Any]]]]:
    """Parameters with a gradient, gradients, and state by slot; None before a first step."""
    parameters: List[Any] = []
    gradients: List[Any] = []
    columns: List[List[Any]] = [[] for _ in slots]
    for parameter in candidates:
        gradient = parameter.grad
        if gradient is None:
            continue
        # State lies in the order of the parameters, as a rule; to look it up hashes them.
        key, values = next(entries, _NO_ENTRY)
        if key is not parameter:
            values = state.get(parameter, {})
        for slot, column in zip(slots, columns):
            value = values.get(slot)
            if value is None:
                return None
            column.append(value)
        parameters.append(parameter)
        gradients.append(gradient)
    return parameters, gradients, columns


def _sgd(group: _Group, parameters: Any, gradients: Any, columns: Any, lr: float) -> None:
    momenta = columns[0] if columns else [None] * len(parameters)
    if parameters[0].is_cpu and not group["foreach"] and not group["fused"]:
        _sgd_by_parameter(group, parameters, gradients, momenta, lr)
        return
    sgd(
        parameters,
        gradients,
        momenta,
        foreach=group["foreach"],
        fused=group["fused"],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=lr,
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
    )


def _sgd_by_parameter(
    group: _Group, parameters: Any, gradients: Any, momenta: Any, lr: float
) -> None:
    """What torch does on the CPU unless told otherwise, the same operations in the same order."""
    momentum, weight_decay = group["momentum"], group["weight_decay"]
    for parameter, gradient, velocity in zip(parameters, gradients, momenta):
        change = -gradient if group["maximize"] else gradient
        if weight_decay != 0:
            change = change.add(parameter, alpha=weight_decay)
        if velocity is not None:
            velocity.mul_(momentum).add_(change, alpha=1 - group["dampening"])
            change = change.add(velocity, alpha=momentum) if group["nesterov"] else velocity
        parameter.add_(change, alpha=-lr)


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


_NO_ENTRY: Tuple[Any, Dict[str, Any]] = (None, {})
_MOMENTUM = ("momentum_buffer",)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_KINDS: Dict[type, Tuple[Sequence[str], Callable[..., None]]] = {
    torch.optim.SGD: (_MOMENTUM, _sgd),
    torch.optim.Adam: (_MOMENTS, _adam),
    torch.optim.AdamW: (_MOMENTS, _adamw),
}

"""Optimizers as ``poptorch.optim`` writes them; every value is given, so none is a constant."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import torch

from unified_ipu.adapter import Job, Lowering, Plan, call_text, literal, native_code, optim
from unified_ipu.errors import CapabilityError
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.ipu.optimizers import check_clipping
from unified_ipu_torch.optimizers import build_optimizer

_ARGUMENTS: Dict[str, Tuple[str, ...]] = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": ("lr", "betas", "eps", "weight_decay"),
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
}
_OFF = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")
"""Flags of torch that PopTorch takes and does not carry out."""


def optimizer_text(job: Job, plan: Plan, lowering: Lowering) -> str:
    """Write the statement that makes the optimizer of ``self.model``.

    Args:
        job: Its optimizer is one of torch or of ``ui.optim``.
        plan: Whether it clips.
        lowering: Its calls on the optimizer are arguments here.

    Returns:
        Lines, indented as in a method.

    Raises:
        CapabilityError: If it is an optimizer that PopTorch has not, or that is not written.
    """
    settings, model = job.optimizer, job.model
    if settings is None:
        raise CapabilityError(NAME, "compile got no optimizer, so there is nothing to train")
    native = build_optimizer(settings, dict(model.named_parameters()), job.trainable)
    kind = type(native).__name__
    names = _ARGUMENTS.get(kind)
    if names is None or type(native) is not getattr(torch.optim, kind, None):
        raise CapabilityError(
            NAME, f"optimizer= is a {kind}; PopTorch has {', '.join(_ARGUMENTS)} of torch.optim"
        )
    group = _only_group(native, model)
    _check(group, kind, settings)
    check_clipping(native, plan)
    arguments: List[str] = ["self.model.parameters()"]
    given = [name for name in names if name in group]
    if not group.get("momentum", True):
        # Named, it would be a variable: with a velocity, which is clipped in the gradient's place.
        given = [name for name in given if name not in {"momentum", "dampening", "nesterov"}]
    arguments += [f"{name}={literal(_plain(group[name]))}" for name in given]
    comments: Dict[str, str] = {}
    for call in lowering.calls:
        owner, _, name = call.name.partition(".")
        if call.program == "training" and owner == "optimizer":
            argument = f"{name}={native_code(call.value)}"
            arguments.append(argument)
            comments[argument] = call.field
    return call_text(
        f"self.optimizer = poptorch.optim.{kind}", arguments, indent=8, comments=comments
    )


def _only_group(native: Any, model: Any) -> Mapping[str, Any]:
    trained = [id(each) for each in model.parameters() if each.requires_grad]
    groups = native.param_groups
    if len(groups) != 1 or sorted(map(id, groups[0]["params"])) != sorted(trained):
        raise CapabilityError(
            NAME,
            f"the optimizer has {len(groups)} parameter group(s) over "
            f"{sum(len(group['params']) for group in groups)} of {len(trained)} parameters; what "
            "is written is one group over all that need a gradient",
        )
    group: Mapping[str, Any] = groups[0]
    return group


def _check(group: Mapping[str, Any], kind: str, settings: Any) -> None:
    decoupled = kind == "AdamW"
    for name in _OFF:
        if group.get(name) and not (decoupled and name == "decoupled_weight_decay"):
            raise CapabilityError(NAME, f"{kind}({name}=True): PopTorch has no such thing")
    if group.get("dampening") and not isinstance(settings, optim.Adam):
        raise CapabilityError(
            NAME,
            f"{kind}(dampening={group['dampening']}): torch's first velocity is the whole "
            "gradient, PopTorch's is not; set it to 0",
        )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else value

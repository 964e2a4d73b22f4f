"""A torch optimizer as PopTorch's, and its state there and back.

PopTorch runs no Python of an optimizer: it reads kind and values. Values that were given to a
constructor may change later, so only those are given that have a meaning.

Source: PopTorch 3.4, ``python/optim.py``; PopART 3.4 for the names of the state.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from unified_ipu.adapter import NativeCall, Plan, native_arguments
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_torch.errors import NAME

_KINDS: Dict[type, Tuple[str, Tuple[str, ...]]] = {
    torch.optim.SGD: ("SGD", ("momentum", "weight_decay", "nesterov")),
    torch.optim.Adam: ("Adam", ("betas", "eps", "weight_decay")),
    torch.optim.AdamW: ("AdamW", ("betas", "eps", "weight_decay")),
}
_ZERO_BY_DEFAULT: Dict[str, Tuple[str, ...]] = {
    "SGD": ("momentum", "weight_decay", "nesterov"),
    "Adam": ("weight_decay",),
    "AdamW": (),
}
"""Settings that PopTorch takes for 0 where they are not given; of AdamW's decay it takes 0.01."""
_SLOTS = {
    "SGD": {"momentum_buffer": "Accl___"},
    "Adam": {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "step": "Step___"},
}
_SLOTS["AdamW"] = _SLOTS["Adam"]
_REFUSED = {
    "maximize": "PopTorch does not send it; negate the loss",
    "amsgrad": "PopTorch refuses it; use Adam without it",
    "dampening": "PopART damps the first gradient too, torch does not; set it to 0",
}


def check_native(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of PopTorch's class for an optimizer.

    Raises:
        CapabilityError: If PopTorch has none, or does not know a setting.
    """
    if type(optimizer) not in _KINDS:
        raise CapabilityError(
            NAME,
            f"{type(optimizer).__name__} is not driven on IPUs; use torch.optim.SGD, Adam or AdamW",
        )
    name = _KINDS[type(optimizer)][0]
    for setting, change in _REFUSED.items():
        if any(group.get(setting) for group in optimizer.param_groups):
            raise CapabilityError(NAME, f"{name}({setting}=...): {change}")
    if any(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups):
        raise CapabilityError(NAME, f"{name}: a learning rate has to be a number, not a tensor")
    return name


def check_clipping(optimizer: torch.optim.Optimizer, plan: Plan) -> None:
    """Refuse to clip where PopART clips something else than the gradient.

    Source: PopART 3.4, ``willow/src/transforms/clipweightgradientsbynorm.cpp``.

    Raises:
        CapabilityError: If SGD has momentum or a loss scale, and the plan clips.
    """
    if plan.update.clip_norm is None or type(optimizer) is not torch.optim.SGD:
        return
    if any(group["momentum"] for group in optimizer.param_groups):
        what = "with momentum PopART clips the velocity of SGD, not the gradient"
    elif plan.precision.loss_scale != "none":
        what = "PopART clips the gradients of SGD while they still have the loss scale"
    else:
        return
    raise CapabilityError(
        NAME,
        f"update.clip_norm: {what}; use Adam or AdamW, or SGD without momentum and "
        'precision.loss_scale = "none"',
    )


def constants(optimizer: torch.optim.Optimizer) -> List[Tuple[Any, ...]]:
    """Values of the groups that are compiled in: all but the learning rates."""
    names = _KINDS[type(optimizer)][1]
    return [tuple(group[name] for name in names) for group in optimizer.param_groups]


def device_optimizer(
    poptorch: Any,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[int, torch.nn.Parameter],
    calls: Sequence[NativeCall],
    names: Mapping[str, Any],
) -> Any:
    """Make PopTorch's optimizer.

    Args:
        poptorch: The SDK.
        optimizer: Of the host.
        parameters: Those of the copy that is trained, by the id of the host's.
        calls: Of the lowering; those of ``optimizer`` are its extra arguments.
        names: What native code may name.

    Raises:
        ConfigError: If an extra argument is not one value.
    """
    kind, settings = _KINDS[type(optimizer)]
    extra: Dict[str, Any] = {}
    for call in calls:
        first, _, name = call.name.partition(".")
        if first != "optimizer":
            continue
        values, keywords = native_arguments(call.value, names)
        if len(values) != 1 or keywords:
            raise ConfigError(f"{call.name} has not one value: {call.value!r}")
        extra[name] = values[0]
    optional = _ZERO_BY_DEFAULT[kind]
    used = [
        name
        for name in settings
        if name not in optional or any(group[name] for group in optimizer.param_groups)
    ]
    groups = [
        {
            "params": [parameters[id(p)] for p in group["params"] if id(p) in parameters],
            "lr": float(group["lr"]),
            **{name: group[name] for name in used},
        }
        for group in optimizer.param_groups
    ]
    common = {name: groups[0][name] for name in used}
    return getattr(poptorch.optim, kind)(groups, lr=groups[0]["lr"], **common, **extra)


def slots_from_device(
    state: Mapping[str, Any], kind: str, names: Mapping[str, str]
) -> Dict[str, Any]:
    """The state of a device under torch's names, numpy arrays.

    Args:
        state: ``ipu_state`` of a state_dict.
        kind: Name of PopTorch's class.
        names: Trained tensors by the device's names for them.

    Raises:
        ConfigError: If the state holds something of none of them.
    """
    by_prefix = {prefix: slot for slot, prefix in _SLOTS[kind].items()}
    found: Dict[str, Any] = {}
    for key, value in state.items():
        prefix, _, own = key.partition("___")
        slot = by_prefix.get(f"{prefix}___")
        if slot is None:
            continue  # sums of gradients, which are 0 between updates
        if own not in names:
            raise ConfigError(f"the device's state has {key!r}, which belongs to no parameter")
        array = torch.as_tensor(value).detach().float().cpu().numpy()
        found[f"{names[own]}/{slot}"] = array.reshape(()) if slot == "step" else array
    return found


def slots_to_device(
    slots: Mapping[str, Any], kind: str, names: Mapping[str, str]
) -> Optional[Dict[str, Any]]:
    """What ``ipu_state`` is for slots by torch's names; None if there are none."""
    devices = {host: own for own, host in names.items()}
    found: Dict[str, Any] = {}
    for name, value in slots.items():
        owner, _, slot = name.rpartition("/")
        prefix = _SLOTS[kind].get(slot)
        if prefix is not None and owner in devices:
            found[f"{prefix}{devices[owner]}"] = torch.tensor(value, dtype=torch.float32)
    return found or None

"""The device's own optimizers: what happens to a weight once its gradient is reduced.

PopTorch runs no Python of an optimizer; it hands PopART a kind and its values. The state bears
PopART's prefixes. All is computed in float32, whatever the weight is stored in.

Source: PopART 3.4, ``willow/include/popart/{sgd,adam,adaptive}.hpp`` and
``willow/src/patterns/{sgd,adam,adaptive}decompose.cpp``; PopTorch 3.4, ``CompilerImpl.cpp``.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, Mapping, Sequence, Tuple

import torch

Slots = Dict[str, torch.Tensor]
Values = Mapping[str, float]
Rule = Callable[[torch.Tensor, torch.Tensor, Slots, Values], torch.Tensor]

VELOCITY, FIRST, SECOND, THIRD, STEP = "Accl___", "Accl1___", "Accl2___", "Accl3___", "Step___"


def clip_factor(gradients: Mapping[str, torch.Tensor], most: float) -> float:
    """What all gradients are multiplied with so that their global norm is at most ``most``."""
    if math.isinf(most):
        return 1.0
    squares = [gradient.double().square().sum() for gradient in gradients.values()]
    norm = math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
    return most / max(norm, most)


def sgd_updater(
    weight: torch.Tensor, gradient: torch.Tensor, slots: Slots, group: Values
) -> torch.Tensor:
    """What SGD with separate accumulators subtracts: the velocity, or without one the gradient.

    Args:
        weight: float32.
        gradient: float32.
        slots: State of the weight.
        group: Values of its group.

    Returns:
        The vector; this is what PopART clips.
    """
    momentum = group["momentum"]
    if not momentum and not group["has_velocity"]:
        return gradient
    gradient = gradient + group["weight_decay"] * weight
    velocity = _slot(slots, VELOCITY, weight)
    velocity.mul_(momentum).add_(gradient, alpha=1.0 - group["dampening"])
    return gradient + momentum * velocity if group["nesterov"] else velocity


def sgd_step(
    weight: torch.Tensor, updater: torch.Tensor, slots: Slots, group: Values
) -> torch.Tensor:
    """Subtract it; without a velocity the weight decays here.

    Args:
        weight: float32.
        updater: Of ``sgd_updater``, clipped.
        slots: State of the weight.
        group: Values of its group.

    Returns:
        The new weight.
    """
    rate = group["lr"]
    if VELOCITY not in slots:
        rate *= 1.0 - group["dampening"]
        weight = weight - rate * group["weight_decay"] * weight
    return weight - rate * updater


def combined_updater(
    weight: torch.Tensor, gradient: torch.Tensor, slots: Slots, group: Values
) -> torch.Tensor:
    """The velocity into which the gradients were accumulated.

    Args:
        weight: float32.
        gradient: float32.
        slots: State of the weight.
        group: Values of its group.

    Returns:
        The vector; this is what PopART clips.
    """
    kept = 1.0 - group["dampening"]
    is_new = VELOCITY not in slots
    velocity = _slot(slots, VELOCITY, weight)
    if is_new:
        velocity.add_(weight, alpha=kept * group["weight_decay"])
    return velocity.add_(gradient, alpha=kept)


def combined_step(
    weight: torch.Tensor, updater: torch.Tensor, slots: Slots, group: Values
) -> torch.Tensor:
    """Subtract it; momentum and decay act now, for the next update: a changed one is late by one.

    Args:
        weight: float32.
        updater: Of ``combined_updater``, clipped.
        slots: State of the weight.
        group: Values of its group.

    Returns:
        The new weight.
    """
    weight = weight - group["lr"] * updater
    kept = 1.0 - group["dampening"]
    slots[VELOCITY].mul_(group["momentum"]).add_(weight, alpha=kept * group["weight_decay"])
    return weight


def _adam_direction(
    gradient: torch.Tensor, slots: Slots, group: Values, *, has_correction: bool
) -> torch.Tensor:
    beta1, beta2 = group["beta1"], group["beta2"]
    first, second = _slot(slots, FIRST, gradient), _slot(slots, SECOND, gradient)
    step = _slot(slots, STEP, torch.zeros(()))
    step.add_(1.0)
    first.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    done = int(step)
    correct1 = 1.0 - beta1**done if has_correction else 1.0
    correct2 = 1.0 - beta2**done if has_correction else 1.0
    return (first / correct1) / ((second / correct2).sqrt() + group["eps"])


def adam(weight: torch.Tensor, gradient: torch.Tensor, slots: Slots, group: Values) -> torch.Tensor:
    """Adam with weight decay in the gradient.

    Args:
        weight: float32.
        gradient: float32.
        slots: State of the weight.
        group: Values of its group.

    Returns:
        The new weight.
    """
    gradient = gradient + group["weight_decay"] * weight
    return weight - group["lr"] * _adam_direction(gradient, slots, group, has_correction=True)


def adamw(
    weight: torch.Tensor, gradient: torch.Tensor, slots: Slots, group: Values
) -> torch.Tensor:
    """Adam with weight decay beside the gradient.

    Args:
        weight: float32.
        gradient: float32.
        slots: State of the weight.
        group: Values of its group.

    Returns:
        The new weight.
    """
    direction = _adam_direction(gradient, slots, group, has_correction=True)
    return weight - group["lr"] * (direction + group["weight_decay"] * weight)


def _lamb(*, has_correction: bool) -> Rule:
    def rule(
        weight: torch.Tensor, gradient: torch.Tensor, slots: Slots, group: Values
    ) -> torch.Tensor:
        direction = _adam_direction(gradient, slots, group, has_correction=has_correction)
        direction = direction + group["weight_decay"] * weight
        size = min(float(weight.norm()), float(group["max_weight_norm"]))
        length = float(direction.norm())
        trust = size / length if size > 0.0 and length > 0.0 else 1.0
        return weight - group["lr"] * trust * direction

    return rule


def _rmsprop(*, is_centered: bool) -> Rule:
    def rule(
        weight: torch.Tensor, gradient: torch.Tensor, slots: Slots, group: Values
    ) -> torch.Tensor:
        gradient = gradient + group["weight_decay"] * weight
        alpha, eps = group["alpha"], group["eps"]
        squares = _slot(slots, FIRST, weight)
        squares.mul_(alpha).addcmul_(gradient, gradient, value=1.0 - alpha)
        spread = squares
        if is_centered:
            mean = _slot(slots, THIRD, weight)
            mean.mul_(alpha).add_(gradient, alpha=1.0 - alpha)
            spread = squares - mean.square()
        is_tf = group["use_tf_variant"]
        scale = (spread + eps).sqrt() if is_tf else spread.sqrt() + eps
        step = gradient / scale
        if not group["momentum"]:
            return weight - group["lr"] * step
        velocity = _slot(slots, SECOND, weight)
        if is_tf:
            velocity.mul_(group["momentum"]).add_(step, alpha=group["lr"])
            return weight - velocity
        velocity.mul_(group["momentum"]).add_(step)
        return weight - group["lr"] * velocity

    return rule


RULES: Dict[str, Rule] = {
    "ADAM": adam,
    "ADAMW": adamw,
    # PopTorch never selects PopART's mode without bias correction for it.
    "ADAMW_NO_BIAS": adamw,
    "RMSPROP": _rmsprop(is_centered=False),
    "RMSPROP_CENTERED": _rmsprop(is_centered=True),
    "LAMB": _lamb(has_correction=True),
    "LAMB_NO_BIAS": _lamb(has_correction=False),
}
"""By the kind that PopTorch sends to its backend; SGD, which is clipped later, apart."""

SGD_RULES: Dict[str, Tuple[Rule, Rule]] = {
    "SGD1": (combined_updater, combined_step),
    "SGD2": (sgd_updater, sgd_step),
}

_ADAM = (FIRST, SECOND, STEP)
_ALLOCATED: Dict[str, Sequence[str]] = {
    "ADAM": _ADAM,
    "ADAMW": _ADAM,
    "ADAMW_NO_BIAS": _ADAM,
    "RMSPROP": (FIRST,),
    "RMSPROP_CENTERED": (FIRST, THIRD),
    "LAMB": _ADAM,
    "LAMB_NO_BIAS": _ADAM,
}


def new_slots(kind: str, weight: torch.Tensor, group: Values) -> Slots:
    """The slots that a weight has from compilation on, all zero.

    That of combined accumulators holds the decay of the first weight, so it begins with the first
    update.

    Args:
        kind: As in ``RULES``.
        weight: Of the device.
        group: Values of its group.
    """
    prefixes = list(_ALLOCATED.get(kind, ()))
    if kind == "SGD2" and (group["momentum"] or group["has_velocity"]):
        prefixes.append(VELOCITY)
    if kind.startswith("RMSPROP") and group["momentum"]:
        prefixes.append(SECOND)
    shapes = {STEP: torch.zeros(())}
    return {prefix: torch.zeros_like(shapes.get(prefix, weight.detach())) for prefix in prefixes}


def _slot(slots: Slots, prefix: str, like: torch.Tensor) -> torch.Tensor:
    """A slot of the weight, zero at first; kept in float32."""
    if prefix not in slots:
        slots[prefix] = torch.zeros_like(like, dtype=torch.float32)
    return slots[prefix]

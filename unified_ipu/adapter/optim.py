"""Optimizers that every adapter carries out with PyTorch's arithmetic.

Source: the update rules of torch.optim.SGD, Adam and AdamW as documented by PyTorch 2.x; each
adapter's conformance run compares 50 updates with literals and a float64 oracle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Tuple

from unified_ipu.errors import ConfigError


def _check_range(owner: str, name: str, value: Any, *, above: float = -math.inf) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0.0 or value <= above:
        wanted = "a finite number > 0" if above == 0.0 else "a finite number >= 0"
        raise ConfigError(f"{owner}({name}={value!r}): expected {wanted}")


def _check_betas(owner: str, betas: Any) -> None:
    try:
        first, second = betas
        is_valid = 0.0 <= first < 1.0 and 0.0 <= second < 1.0
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ConfigError(f"{owner}(betas={betas!r}): expected two numbers in [0, 1)")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent; the rate stays outside the velocity.

    ``d = g + weight_decay * w``; with momentum ``v = momentum * v + (1 - dampening) * d`` (the
    first velocity is d itself), ``d = d + momentum * v`` if nesterov else ``v``; ``w -= lr * d``.

    Args:
        lr: Learning rate, > 0.
        momentum: Factor of the velocity, >= 0; 0 keeps none.
        dampening: Of the gradient that enters the velocity, >= 0.
        nesterov: Look ahead; needs momentum > 0 and dampening 0.
        weight_decay: L2 penalty, >= 0.

    Raises:
        ConfigError: If a value is out of its range.
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_range("SGD", "lr", self.lr, above=0.0)
        for name in ("momentum", "dampening", "weight_decay"):
            _check_range("SGD", name, getattr(self, name))
        if self.nesterov and (self.momentum == 0.0 or self.dampening != 0.0):
            raise ConfigError(
                f"SGD(nesterov=True) needs momentum > 0 and dampening 0, got momentum="
                f"{self.momentum} and dampening={self.dampening}; change one of them"
            )


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; weight decay is an L2 penalty in the gradient.

    ``w -= lr * m_hat / (sqrt(v_hat) + eps)``; epsilon is added after the correction.

    Args:
        lr: Learning rate, > 0.
        betas: Decay of the first and second moment, each in [0, 1).
        eps: Added to the denominator, >= 0.
        weight_decay: L2 penalty, >= 0.

    Raises:
        ConfigError: If a value is out of its range.
    """

    lr: float = 1e-3
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_range(type(self).__name__, "lr", self.lr, above=0.0)
        _check_betas(type(self).__name__, self.betas)
        for name in ("eps", "weight_decay"):
            _check_range(type(self).__name__, name, getattr(self, name))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled decay: ``w *= 1 - lr * weight_decay`` before the step."""

    weight_decay: float = 0.01

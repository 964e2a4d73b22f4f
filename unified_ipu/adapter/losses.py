"""Losses that adapters carry out with the same formulas, for whoever has no native one at hand.

A model with several outputs names the one that the loss reads. What the mean is divided by, and so
the weight W of the update law, is said with each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional, Tuple, Union

from unified_ipu.errors import ConfigError

REDUCTIONS = ("mean", "sum", "none")

Output = Union[None, int, str]
"""Which output of the model: its name, its index in a tuple, or None where there is only one."""


@dataclass(frozen=True)
class OutputLoss:
    """A loss of one output and the targets, as the functions of this module describe it.

    Args:
        kind: Name of the function.
        output: Which output of the model.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, one value a unit.
        class_weights: One a class, or None: all 1.
        ignore_index: Target that does not count; None: there is none but -100.
        delta: Where ``huber`` turns from a square into a line.

    Raises:
        ConfigError: If a value is impossible.
    """

    kind: str
    output: Output = None
    reduction: str = "mean"
    class_weights: Optional[Tuple[float, ...]] = None
    ignore_index: Optional[int] = None
    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ConfigError(
                f"{self.kind}(reduction={self.reduction!r}): expected one of "
                f"{', '.join(REDUCTIONS)}"
            )
        if isinstance(self.output, bool) or not isinstance(self.output, (int, str, type(None))):
            raise ConfigError(
                f"{self.kind}(output={self.output!r}): expected the name of an output of the "
                "model, its index, or None"
            )
        weights = self.class_weights or ()
        if not all(math.isfinite(weight) and weight >= 0.0 for weight in weights):
            raise ConfigError(
                f"{self.kind}(class_weights={list(weights)}): expected finite numbers >= 0, one a "
                "class"
            )
        if not (math.isfinite(self.delta) and self.delta > 0.0):
            raise ConfigError(f"{self.kind}(delta={self.delta!r}): expected a finite number > 0")

    def select(self, outputs: Any) -> Any:
        """Take the one output that the loss reads out of what a model returned.

        Raises:
            ConfigError: If it is not there, or not said which of several it is.
        """
        if self.output is None:
            if isinstance(outputs, (dict, tuple, list)):
                raise ConfigError(
                    f"{self.kind} reads one output, but the model has {_listed(outputs)}; pass "
                    "output= with one of them"
                )
            return outputs
        try:
            if isinstance(self.output, str) == isinstance(outputs, dict):
                return outputs[self.output]
        except (KeyError, IndexError, TypeError):
            pass
        raise ConfigError(
            f"{self.kind}(output={self.output!r}): the model has {_listed(outputs)}; name one of "
            "its outputs"
        )


def softmax_cross_entropy(
    *,
    output: Output = None,
    class_weights: Optional[Iterable[float]] = None,
    ignore_index: Optional[int] = None,
    reduction: str = "mean",
) -> OutputLoss:
    """``-log(softmax(logits)[target])`` times the weight of the target's class.

    Logits are ``[rows, classes, ...]``, targets class indices ``[rows, ...]``. The mean is divided
    by the class weights of the targets that are not ignored.
    """
    weights = _class_weights("softmax_cross_entropy", class_weights)
    return OutputLoss("softmax_cross_entropy", output, reduction, weights, ignore_index)


def negative_log_likelihood(
    *,
    output: Output = None,
    class_weights: Optional[Iterable[float]] = None,
    ignore_index: Optional[int] = None,
    reduction: str = "mean",
) -> OutputLoss:
    """``-output[target]``, for outputs that are logarithms of probabilities already.

    Shapes and mean as in ``softmax_cross_entropy``.
    """
    weights = _class_weights("negative_log_likelihood", class_weights)
    return OutputLoss("negative_log_likelihood", output, reduction, weights, ignore_index)


def sigmoid_cross_entropy(*, output: Output = None, reduction: str = "mean") -> OutputLoss:
    """Binary cross-entropy of logits and targets in [0, 1], both of one shape.

    The mean is divided by the number of elements.
    """
    return OutputLoss("sigmoid_cross_entropy", output, reduction)


def mean_squared_error(*, output: Output = None, reduction: str = "mean") -> OutputLoss:
    """``(output - target) ** 2``; the mean is divided by the number of elements."""
    return OutputLoss("mean_squared_error", output, reduction)


def mean_absolute_error(*, output: Output = None, reduction: str = "mean") -> OutputLoss:
    """``|output - target|``; the mean is divided by the number of elements."""
    return OutputLoss("mean_absolute_error", output, reduction)


def huber(*, output: Output = None, delta: float = 1.0, reduction: str = "mean") -> OutputLoss:
    """``0.5 * d ** 2`` where ``d = |output - target| <= delta``, else ``delta * (d - delta / 2)``.

    The mean is divided by the number of elements.
    """
    return OutputLoss("huber", output, reduction, delta=delta)


FUNCTIONS: Tuple[Callable[..., OutputLoss], ...] = (
    softmax_cross_entropy,
    negative_log_likelihood,
    sigmoid_cross_entropy,
    mean_squared_error,
    mean_absolute_error,
    huber,
)


def described(loss: Any) -> Any:
    """Return ``loss``, or what a function of this module returns if it is passed uncalled."""
    return loss() if any(loss is function for function in FUNCTIONS) else loss


def _class_weights(kind: str, weights: Optional[Iterable[float]]) -> Optional[Tuple[float, ...]]:
    if weights is None:
        return None
    try:
        return tuple(float(weight) for weight in weights)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{kind}(class_weights={weights!r}): expected a sequence of numbers, one a class"
        ) from error


def _listed(outputs: Any) -> str:
    if isinstance(outputs, dict):
        return f"the outputs {', '.join(repr(name) for name in outputs)}"
    if isinstance(outputs, (tuple, list)):
        return f"{len(outputs)} outputs without names"
    return "one output without a name"

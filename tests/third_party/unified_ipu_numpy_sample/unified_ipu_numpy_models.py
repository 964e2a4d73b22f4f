"""Small numpy models and losses with hand-written gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import losses

Gradients = Dict[str, Any]


@dataclass(frozen=True)
class Differentiable:
    """A value S and its gradients by parameter name; names left out were not used."""

    value: Any
    gradients: Mapping[str, Any]


class Mlp:
    """Linear layers with an activation and dropout between; names as in ``torch.nn.Sequential``.

    Args:
        sizes: Features of input, hidden layers and output; two numbers give a linear model.
        dtype: Of parameters and computation.
        seed: Of the initial weights, uniform within 1/sqrt(inputs).
        dropout: Probability that a hidden feature is left out in training.
        activation: ``"tanh"`` or ``"relu"``.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        dtype: str = "float64",
        seed: int = 0,
        dropout: float = 0.0,
        activation: str = "tanh",
    ) -> None:
        rng = np.random.default_rng(seed)
        self.depth, self.dropout, self.activation = len(sizes) - 1, dropout, activation
        self.parameters: Dict[str, Any] = {}
        for layer, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
            bound = 1.0 / np.sqrt(inputs)
            for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                value = rng.uniform(-bound, bound, shape).astype(dtype)
                self.parameters[f"{2 * layer}.{kind}"] = value

    def forward(self, x: Any, rng: Optional[Any] = None) -> Tuple[Any, Callable[[Any], Gradients]]:
        p = self.parameters
        inputs, slopes = [np.asarray(x).astype(p["0.weight"].dtype, copy=False)], []
        z = inputs[0]
        for layer in range(self.depth):
            z = inputs[-1] @ p[f"{2 * layer}.weight"].T + p[f"{2 * layer}.bias"]
            if layer == self.depth - 1:
                break
            a = np.tanh(z) if self.activation == "tanh" else np.maximum(z, 0)
            slope = 1 - a * a if self.activation == "tanh" else (z > 0).astype(z.dtype)
            if rng is not None and self.dropout > 0.0:
                mask = (rng.random(a.shape) >= self.dropout).astype(a.dtype) / (1 - self.dropout)
                a, slope = a * mask, slope * mask
            inputs.append(a)
            slopes.append(slope)

        def backward(d: Any) -> Gradients:
            gradients = {}
            for layer in reversed(range(self.depth)):
                gradients[f"{2 * layer}.weight"] = d.T @ inputs[layer]
                gradients[f"{2 * layer}.bias"] = d.sum(axis=0)
                if layer > 0:
                    d = (d @ p[f"{2 * layer}.weight"]) * slopes[layer - 1]
            return gradients

        return z, backward


Values = Tuple[Any, Any]  # of every unit, and the gradient of their sum by the outputs


class ElementLoss:
    """A loss of which every element is a unit; the mean is over all elements.

    Args:
        function: ``(outputs, targets)`` to values and gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """

    def __init__(self, function: Callable[[Any, Any], Values], reduction: str = "mean") -> None:
        self._function, self.reduction = function, reduction

    def units(self, targets: Any) -> Any:
        """Weight of every value that ``each`` returns."""
        return np.ones(np.shape(targets))

    def each(self, outputs: Any, targets: Any) -> Values:
        """Values ``[rows, ...]`` and the gradient of their sum by ``outputs``."""
        return self._function(outputs, targets)


class MeanSquaredError(ElementLoss):
    """Squared differences; the mean is over all elements."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(_squared, reduction)


def _squared(outputs: Any, targets: Any) -> Values:
    difference = outputs - targets
    return difference**2, 2 * difference


def _absolute(outputs: Any, targets: Any) -> Values:
    difference = outputs - targets
    return np.abs(difference), np.sign(difference)


def _sigmoid(logits: Any, targets: Any) -> Values:
    values = np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))
    return values, 0.5 * (1 + np.tanh(0.5 * logits)) - targets


def _huber(delta: float) -> Callable[[Any, Any], Values]:
    def huber(outputs: Any, targets: Any) -> Values:
        difference = outputs - targets
        inside = np.clip(difference, -delta, delta)
        return inside * (difference - 0.5 * inside), inside

    return huber


class SoftmaxCrossEntropy:
    """Cross entropy of class indices ``[rows]``; the mean is over the weights of counted targets.

    Args:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        class_weights: ``[classes]``, or None: all 1.
        ignore_index: Targets of this value do not count.
    """

    def __init__(
        self,
        reduction: str = "mean",
        class_weights: Optional[Sequence[float]] = None,
        ignore_index: int = -100,
    ) -> None:
        self.reduction, self.ignore_index = reduction, ignore_index
        self.class_weights = None if class_weights is None else np.asarray(class_weights)

    def units(self, targets: Any) -> Any:
        """Weight of every value that ``each`` returns."""
        targets = np.asarray(targets)
        counted = targets != self.ignore_index
        if self.class_weights is None:
            return counted.astype(np.float64)
        return np.where(counted, self.class_weights[np.where(counted, targets, 0)], 0.0)

    def each(self, outputs: Any, targets: Any) -> Values:
        """Values ``[rows]`` and the gradient of their sum by ``outputs``."""
        units = self.units(targets).astype(outputs.dtype)
        index = np.where(units != 0, np.asarray(targets), 0)[:, None]
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        gradient = np.exp(log_p)
        chosen = np.take_along_axis(gradient, index, axis=1) - 1
        np.put_along_axis(gradient, index, chosen, axis=1)
        return -units * np.take_along_axis(log_p, index, axis=1)[:, 0], gradient * units[:, None]


class NegativeLogLikelihood(SoftmaxCrossEntropy):
    """The same of outputs that are logarithms of probabilities already."""

    def each(self, outputs: Any, targets: Any) -> Values:
        """Values ``[rows]`` and the gradient of their sum by ``outputs``."""
        units = self.units(targets).astype(outputs.dtype)
        index = np.where(units != 0, np.asarray(targets), 0)[:, None]
        gradient = np.zeros_like(outputs)
        np.put_along_axis(gradient, index, -units[:, None], axis=1)
        return -units * np.take_along_axis(outputs, index, axis=1)[:, 0], gradient


class Described:
    """One of ``ui.losses`` with hand-written gradients.

    Args:
        loss: What a function there returned.
    """

    def __init__(self, loss: losses.OutputLoss) -> None:
        self._loss, self.reduction = loss, loss.reduction
        ignored = -100 if loss.ignore_index is None else loss.ignore_index
        classes = (loss.class_weights, ignored)
        self._native: Any = {
            "mean_squared_error": ElementLoss(_squared),
            "mean_absolute_error": ElementLoss(_absolute),
            "sigmoid_cross_entropy": ElementLoss(_sigmoid),
            "huber": ElementLoss(_huber(loss.delta)),
            "softmax_cross_entropy": SoftmaxCrossEntropy("mean", *classes),
            "negative_log_likelihood": NegativeLogLikelihood("mean", *classes),
        }[loss.kind]

    def units(self, targets: Any) -> Any:
        """Weight of every value that ``each`` returns."""
        return self._native.units(targets)

    def each(self, outputs: Any, targets: Any) -> Values:
        """Values and the gradient of their sum by ``outputs``."""
        found: Values = self._native.each(self._loss.select(outputs), targets)
        return found

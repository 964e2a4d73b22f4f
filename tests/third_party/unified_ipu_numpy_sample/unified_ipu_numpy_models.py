"""Small numpy models and losses with hand-written gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

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


class MeanSquaredError:
    """Squared differences; the mean is over all elements."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def units(self, targets: Any) -> Any:
        """Weight of every value that ``each`` returns."""
        return np.ones(np.shape(targets))

    def each(self, outputs: Any, targets: Any) -> Tuple[Any, Any]:
        """Values ``[rows, ...]`` and the gradient of their sum by ``outputs``."""
        difference = outputs - targets
        return difference**2, 2 * difference


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

    def each(self, outputs: Any, targets: Any) -> Tuple[Any, Any]:
        """Values ``[rows]`` and the gradient of their sum by ``outputs``."""
        units = self.units(targets).astype(outputs.dtype)
        index = np.where(units != 0, np.asarray(targets), 0)[:, None]
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        gradient = np.exp(log_p)
        chosen = np.take_along_axis(gradient, index, axis=1) - 1
        np.put_along_axis(gradient, index, chosen, axis=1)
        return -units * np.take_along_axis(log_p, index, axis=1)[:, 0], gradient * units[:, None]

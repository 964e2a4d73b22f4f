"""A single-process float64 reference in plain numpy: what training must come to.

Written from the definitions, apart from every adapter and from the engine: it sees whole updates,
never micro-batches or ranks. Held by finite differences and literals in ``test_oracle.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import optim

Scores = Tuple[float, float, Any]  # S, W, and the gradient of S by the outputs
Loss = Callable[[Any, Any], Scores]


def squared_error(outputs: Any, targets: Any) -> Scores:
    """Squared differences; a unit is an element."""
    difference = outputs - targets
    return float((difference * difference).sum()), float(difference.size), 2.0 * difference


def product(outputs: Any, targets: Any) -> Scores:
    """``outputs * targets``; a unit is a row."""
    return float((outputs * targets).sum()), float(len(outputs)), np.asarray(targets, np.float64)


def absolute_error(outputs: Any, targets: Any) -> Scores:
    """Absolute differences; a unit is an element."""
    difference = outputs - targets
    return float(np.abs(difference).sum()), float(difference.size), np.sign(difference)


def huber(delta: float) -> Loss:
    """Half the square of a difference up to ``delta``, a line beyond; a unit is an element."""

    def loss(outputs: Any, targets: Any) -> Scores:
        difference = outputs - targets
        size = np.abs(difference)
        values = np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))
        gradient = np.clip(difference, -delta, delta)
        return float(values.sum()), float(difference.size), gradient

    return loss


def sigmoid_cross_entropy(outputs: Any, targets: Any) -> Scores:
    """Binary cross entropy of logits; a unit is an element."""
    likelihood = 1.0 / (1.0 + np.exp(-outputs))
    values = -(targets * np.log(likelihood) + (1.0 - targets) * np.log(1.0 - likelihood))
    return float(values.sum()), float(outputs.size), likelihood - targets


def negative_log_likelihood(
    class_weights: Optional[Sequence[float]] = None, ignore_index: int = -100
) -> Loss:
    """Minus the output of the target's class; a unit is a target's class weight."""

    def loss(outputs: Any, targets: Any) -> Scores:
        total, weight, gradient = 0.0, 0.0, np.zeros_like(outputs)
        for row, target in enumerate(targets):
            if target != ignore_index:
                unit = 1.0 if class_weights is None else float(class_weights[target])
                total -= unit * float(outputs[row, target])
                weight += unit
                gradient[row, target] = -unit
        return total, weight, gradient

    return loss


def cross_entropy(
    class_weights: Optional[Sequence[float]] = None, ignore_index: int = -100
) -> Loss:
    """Negative log likelihood of class indices; a unit is a target's class weight."""

    def loss(outputs: Any, targets: Any) -> Scores:
        total, weight, gradient = 0.0, 0.0, np.zeros_like(outputs)
        for row, target in enumerate(targets):
            if target == ignore_index:
                continue
            unit = 1.0 if class_weights is None else float(class_weights[target])
            powers = np.exp(outputs[row] - outputs[row].max())
            likelihood = powers / powers.sum()
            total -= unit * float(np.log(likelihood[target]))
            weight += unit
            gradient[row] = unit * likelihood
            gradient[row, target] -= unit
        return total, weight, gradient

    return loss


def outputs_of(parameters: Mapping[str, Any], x: Any) -> Any:
    """``Subject.linear`` or ``Subject.mlp`` with these canonical parameters."""
    return _activations(parameters, x)[-1]


def gradient_of(parameters: Mapping[str, Any], x: Any, output_gradient: Any) -> Dict[str, Any]:
    """Gradient of a scalar by each parameter, given its gradient by the outputs."""
    activations = _activations(parameters, x)
    names = _layer_names(parameters)
    found: Dict[str, Any] = {}
    flowing = np.asarray(output_gradient, np.float64)
    for layer in range(len(names) - 1, -1, -1):
        weight, bias = names[layer]
        found[weight] = np.einsum("ni,no->io", activations[layer], flowing)
        if bias in parameters:
            found[bias] = np.einsum("no->o", flowing)
        if layer:
            back = np.einsum("no,io->ni", flowing, parameters[weight])
            flowing = back * (1.0 - activations[layer] ** 2)
    return found


def _layer_names(parameters: Mapping[str, Any]) -> List[Tuple[str, str]]:
    if "weight" in parameters:
        return [("weight", "bias")]
    depth = sum(name.startswith("weight.") for name in parameters)
    return [(f"weight.{layer}", f"bias.{layer}") for layer in range(depth)]


def _activations(parameters: Mapping[str, Any], x: Any) -> List[Any]:
    values = [np.asarray(x, np.float64)]
    names = _layer_names(parameters)
    for layer, (weight, bias) in enumerate(names):
        z = np.einsum("ni,io->no", values[-1], parameters[weight])
        if bias in parameters:
            z = z + parameters[bias]
        values.append(z if layer == len(names) - 1 else np.tanh(z))
    return values


@dataclass
class Oracle:
    """Trains canonical parameters by the update law.

    Args:
        parameters: Starting values by canonical name; copied.
        loss: ``(outputs, targets) -> (S, W, gradient of S by outputs)``.
        optimizer: One of ``ui.optim``.
        clip_norm: Largest global norm of g, or None.
        reduction: ``"mean"`` or ``"sum"``.
        factor: Of the learning rate, by the number of updates that have happened.
        l2: Adds W times ``l2`` times the sum of squared parameters to S.
    """

    parameters: Dict[str, Any]
    loss: Loss
    optimizer: Any
    clip_norm: Optional[float] = None
    reduction: str = "mean"
    factor: Callable[[int], float] = lambda _: 1.0
    l2: float = 0.0
    happened: int = 0
    losses: List[float] = field(default_factory=list)
    weights: List[float] = field(default_factory=list)
    norms: List[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parameters = {n: np.array(p, np.float64) for n, p in self.parameters.items()}
        self._state: Dict[str, Dict[str, Any]] = {name: {} for name in self.parameters}

    def update(self, x: Any, targets: Any) -> None:
        """Make one update of all its samples at once."""
        total, weight, by_outputs = self.loss(outputs_of(self.parameters, x), targets)
        self.weights.append(weight)
        if weight == 0.0:
            self.losses.append(float("nan"))
            return
        gradients = gradient_of(self.parameters, x, by_outputs)
        for name, value in self.parameters.items():
            total += weight * self.l2 * float((value * value).sum())
            gradients[name] = gradients[name] + 2.0 * weight * self.l2 * value
        self.losses.append(total / weight)
        divisor = 1.0 if self.reduction == "sum" else weight
        gradients = {name: gradient / divisor for name, gradient in gradients.items()}
        norm = float(np.sqrt(sum(float((g * g).sum()) for g in gradients.values())))
        self.norms.append(norm)
        if self.clip_norm is not None and norm > self.clip_norm:
            gradients = {name: g * (self.clip_norm / norm) for name, g in gradients.items()}
        rate = self.optimizer.lr * self.factor(self.happened)
        step = adam_step if isinstance(self.optimizer, optim.Adam) else sgd_step
        for name, gradient in gradients.items():
            value, state = self.parameters[name], self._state[name]
            self.parameters[name] = step(self.optimizer, value, gradient, state, rate)
        self.happened += 1


def sgd_step(settings: Any, value: Any, g: Any, state: Dict[str, Any], rate: float) -> Any:
    """One step of stochastic gradient descent.

    Source: algorithm of ``torch.optim.SGD`` in PyTorch's documentation.
    """
    g = g + settings.weight_decay * value
    if settings.momentum:
        if "b" in state:
            state["b"] = settings.momentum * state["b"] + (1.0 - settings.dampening) * g
        else:
            state["b"] = g
        g = g + settings.momentum * state["b"] if settings.nesterov else state["b"]
    return value - rate * g


def adam_step(settings: Any, value: Any, g: Any, state: Dict[str, Any], rate: float) -> Any:
    """One step of Adam, or of AdamW for settings of that kind.

    Source: algorithms of ``torch.optim.Adam`` and ``AdamW`` in PyTorch's documentation.
    """
    if isinstance(settings, optim.AdamW):
        value = value - rate * settings.weight_decay * value
    else:
        g = g + settings.weight_decay * value
    beta1, beta2 = settings.betas
    t = state["t"] = state.get("t", 0) + 1
    state["m"] = beta1 * state.get("m", 0.0) + (1.0 - beta1) * g
    state["v"] = beta2 * state.get("v", 0.0) + (1.0 - beta2) * g * g
    m_hat = state["m"] / (1.0 - beta1**t)
    v_hat = state["v"] / (1.0 - beta2**t)
    return value - rate * m_hat / (np.sqrt(v_hat) + settings.eps)

"""Activations inside recurrent layers, and one step of each kind of layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node

Unary = Callable[[torch.Tensor], torch.Tensor]

# Name in lower case: function of the value, alpha and beta; defaults of alpha and beta, as many
# as it uses. Source: the operators of these names in ONNX.
_ACTIVATIONS: Dict[str, Tuple[Callable[..., torch.Tensor], Tuple[float, ...]]] = {
    "relu": (torch.relu, ()),
    "tanh": (torch.tanh, ()),
    "sigmoid": (torch.sigmoid, ()),
    "softsign": (functional.softsign, ()),
    "softplus": (functional.softplus, ()),
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "leakyrelu": (functional.leaky_relu, (0.01,)),
    "thresholdedrelu": (lambda x, a: torch.where(x > a, x, torch.zeros_like(x)), (1.0,)),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda x, a, b: torch.clamp(a * x + b, 0, 1), (0.2, 0.5)),
    "elu": (functional.elu, (1.0,)),
}


_GATE_ACTIVATIONS = 2  # a third one, of an LSTM, is for the cell state


def activations(node: Node, defaults: Sequence[str], num_directions: int) -> List[List[Unary]]:
    """Activations of each direction; what a gate sums up is clipped first if the node says so.

    The cell state of an LSTM is no such sum and is not clipped, as in onnxruntime.

    Args:
        node: With ``activations``, ``activation_alpha``, ``activation_beta`` and ``clip``.
        defaults: Names for one direction.
        num_directions: 1 or 2.
    """
    names = [str(name) for name in node.attributes.get("activations", ())]
    names = names or list(defaults) * num_directions
    if len(names) != len(defaults) * num_directions:
        raise node.refuse(
            f"it lists {len(names)} activations; expected {len(defaults) * num_directions}"
        )
    size = len(defaults)
    alphas, betas = iter(node.numbers("activation_alpha")), iter(node.numbers("activation_beta"))
    clip = node.number("clip") if node.has("clip") else None
    found: List[Unary] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise node.refuse(f"activation {name!r} is none of {', '.join(_ACTIVATIONS)}")
        function, usual = _ACTIVATIONS[name.lower()]
        # Each takes the next of the given numbers, if it uses one.
        settings = [next(given, value) for given, value in zip((alphas, betas), usual)]
        gate = len(found) % size < _GATE_ACTIVATIONS
        found.append(_unary(function, settings, clip if gate else None))
    return [found[start : start + size] for start in range(0, len(found), size)]


def _unary(
    function: Callable[..., torch.Tensor], settings: Sequence[float], clip: Optional[float]
) -> Unary:
    if clip is None:
        return lambda x: function(x, *settings)
    bound = clip
    return lambda x: function(x.clamp(-bound, bound), *settings)


@dataclass(frozen=True)
class Weights:
    """One direction of a layer; gates lie one after the other in ONNX's order.

    Attributes:
        hidden: Of the hidden state, shape ``[gates * hidden, hidden]``.
        hidden_bias: Shape ``[gates * hidden]``.
        peepholes: Of the cell state, shape ``[3 * hidden]``.
    """

    hidden: torch.Tensor
    hidden_bias: Optional[torch.Tensor]
    peepholes: Optional[torch.Tensor] = None


State = Tuple[torch.Tensor, ...]  # hidden state, and cell state if there is one
# From what the input contributes, the weights, the state and the activations to the next state.
Cell = Callable[[torch.Tensor, Weights, State, Sequence[Unary]], State]


def rnn_cell(inner: torch.Tensor, weights: Weights, state: State, act: Sequence[Unary]) -> State:
    """``f(x W + h R + b)``."""
    return (act[0](inner + functional.linear(state[0], weights.hidden, weights.hidden_bias)),)


def gru_cell(*, reset_after: bool) -> Cell:
    """Update gate, reset gate, candidate; the reset before or after the product with R."""

    def step(inner: torch.Tensor, weights: Weights, state: State, act: Sequence[Unary]) -> State:
        (h,) = state
        size = h.shape[-1]
        bias = weights.hidden_bias
        gates, last = torch.split(inner, [2 * size, size], -1)
        hidden, hidden_last = torch.split(weights.hidden, [2 * size, size])
        gate_bias, last_bias = (None, None) if bias is None else torch.split(bias, [2 * size, size])
        z, r = act[0](gates + functional.linear(h, hidden, gate_bias)).chunk(2, -1)
        if reset_after:
            candidate = act[1](last + r * functional.linear(h, hidden_last, last_bias))
        else:
            candidate = act[1](last + functional.linear(r * h, hidden_last, last_bias))
        return ((1 - z) * candidate + z * h,)

    return step


def lstm_cell(*, coupled: bool) -> Cell:
    """Input, output and forget gate, candidate; coupled: forget what the input leaves."""

    def step(inner: torch.Tensor, weights: Weights, state: State, act: Sequence[Unary]) -> State:
        h, c = state
        gates = inner + functional.linear(h, weights.hidden, weights.hidden_bias)
        i, o, f, g = gates.chunk(4, -1)
        look_i, look_o, look_f = (
            (None,) * 3 if weights.peepholes is None else (weights.peepholes.chunk(3))
        )
        i, f = _seen(i, look_i, c), _seen(f, look_f, c)
        i = act[0](i)
        f = 1 - i if coupled else act[0](f)
        c = f * c + i * act[1](g)
        return act[0](_seen(o, look_o, c)) * act[2](c), c

    return step


def _seen(gate: torch.Tensor, look: Optional[torch.Tensor], cell: torch.Tensor) -> torch.Tensor:
    """Return what a gate gets when it also looks at the cell state."""
    return gate if look is None else gate + look * cell

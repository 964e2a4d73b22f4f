"""Recurrent layers: by torch's own kernels where they mean the same, else step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.operators.gates import (
    Cell,
    State,
    Unary,
    Weights,
    activations,
    gru_cell,
    lstm_cell,
    rnn_cell,
)
from unified_ipu_onnx.registry import Function, Operator


@dataclass(frozen=True)
class _Kind:
    """A kind of layer.

    Attributes:
        cell: One step of it.
        activations: Their default names.
        num_gates: Rows of the weights, in hidden sizes.
        num_states: 2 with a cell state.
        native: Torch's function for many steps at once; None if it means something else.
        order: Where torch has each of its gates in ONNX's order.
    """

    cell: Cell
    activations: Tuple[str, ...]
    num_gates: int
    num_states: int
    native: Optional[Callable[..., Any]]
    order: Tuple[int, ...]


def rnn(node: Node) -> Function:
    """Elman layer; inputs X, W, R, B, sequence_lens, initial_h."""
    names = [str(name).lower() for name in node.attributes.get("activations", ())]
    native = {"relu": torch.rnn_relu}.get(names[0] if names else "", torch.rnn_tanh)
    usual = ("Relu",) if set(names) == {"relu"} else ("Tanh",)
    return _layer(node, _Kind(rnn_cell, usual, 1, 1, native, (0,)))


def gru(node: Node) -> Function:
    """Gated layer; inputs as ``rnn``."""
    after = bool(node.integer("linear_before_reset"))
    native = torch.gru if after else None
    cell = gru_cell(reset_after=after)
    return _layer(node, _Kind(cell, ("Sigmoid", "Tanh"), 3, 1, native, (1, 0, 2)))


def lstm(node: Node) -> Function:
    """Layer with a cell state; inputs as ``rnn``, then initial_c and the peepholes P."""
    coupled = bool(node.integer("input_forget"))
    peeps = node.has_input(7)
    native = None if coupled or peeps else torch.lstm
    cell, usual = lstm_cell(coupled=coupled), ("Sigmoid", "Tanh", "Tanh")
    return _layer(node, _Kind(cell, usual, 4, 2, native, (0, 2, 3, 1)))


def _layer(node: Node, kind: _Kind) -> Function:
    direction, batch_first = node.text("direction", "forward"), bool(node.integer("layout"))
    if direction not in {"forward", "reverse", "bidirectional"}:
        raise node.refuse(f"direction {direction!r} is none of forward, reverse, bidirectional")
    num_directions = 2 if direction == "bidirectional" else 1
    given = [str(name).lower() for name in node.attributes.get("activations", ())]
    usual = [name.lower() for name in kind.activations] * num_directions
    plain = given in ([], usual) and not node.has("clip") and not node.has_input(4)
    acts = activations(node, kind.activations, num_directions)
    backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]

    def run(
        x: torch.Tensor,
        w: torch.Tensor,
        r: torch.Tensor,
        b: Optional[torch.Tensor] = None,
        lengths: Optional[torch.Tensor] = None,
        initial_h: Optional[torch.Tensor] = None,
        initial_c: Optional[torch.Tensor] = None,
        p: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, ...]:
        x = x.transpose(0, 1) if batch_first else x
        start = _start(x, r, [initial_h, initial_c][: kind.num_states], batch_first=batch_first)
        if plain and kind.native is not None:
            y, last = _at_once(kind, x, w, r, b, start, direction)
        else:
            y, last = _by_steps(kind, x, (w, r, b, p), lengths, start, acts, backward)
        if batch_first:
            y = y.permute(2, 0, 1, 3)
            last = [state.transpose(0, 1) for state in last]
        return (y, *last)

    return run if len(node.outputs) > 1 else lambda *inputs: run(*inputs)[0]


def _start(
    x: torch.Tensor, r: torch.Tensor, given: Sequence[Optional[torch.Tensor]], *, batch_first: bool
) -> List[torch.Tensor]:
    """States before the first step, ``[directions, batch, hidden]``; 0 if not given."""
    found = []
    for state in given:
        if state is None:
            found.append(x.new_zeros(r.shape[0], x.shape[1], r.shape[2]))
        else:
            found.append(state.transpose(0, 1) if batch_first else state)
    return found


def _at_once(
    kind: _Kind,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: Optional[torch.Tensor],
    start: Sequence[torch.Tensor],
    direction: str,
) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    native = kind.native
    if native is None:
        raise RuntimeError("there is no kernel of torch for this layer")
    flat: List[torch.Tensor] = []
    for index in range(w.shape[0]):
        parts = [w[index], r[index]]
        parts += [] if b is None else list(b[index].chunk(2))
        flat += [_in_order(part, kind) for part in parts]
    states = [state.contiguous() for state in start]
    hx = tuple(states) if kind.num_states == 2 else states[0]
    both = direction == "bidirectional"
    x = x.flip(0) if direction == "reverse" else x
    y, *last = native(x, hx, flat, b is not None, 1, 0.0, False, both, False)
    y = y.flip(0) if direction == "reverse" else y
    return y.unflatten(-1, (w.shape[0], r.shape[2])).transpose(1, 2), last


def _in_order(part: torch.Tensor, kind: _Kind) -> torch.Tensor:
    if kind.num_gates == 1:
        return part
    gates = part.chunk(kind.num_gates)
    return torch.cat([gates[index] for index in kind.order])


def _by_steps(
    kind: _Kind,
    x: torch.Tensor,
    weights: Sequence[Optional[torch.Tensor]],
    lengths: Optional[torch.Tensor],
    start: Sequence[torch.Tensor],
    acts: Sequence[Sequence[Unary]],
    backward: Sequence[bool],
) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    rows, lasts = [], []
    for index, reverse in enumerate(backward):
        own = [None if value is None else value[index] for value in weights]
        state = tuple(value[index] for value in start)
        y, last = _one_way(kind.cell, x, own, lengths, state, acts[index], reverse=reverse)
        rows.append(y)
        lasts.append(last)
    return torch.stack(rows, 1), [torch.stack(states) for states in zip(*lasts)]


def _one_way(
    cell: Cell,
    x: torch.Tensor,
    weights: Sequence[Any],
    lengths: Optional[torch.Tensor],
    state: State,
    acts: Sequence[Unary],
    *,
    reverse: bool,
) -> Tuple[torch.Tensor, State]:
    w, r, b, p = weights
    bias, hidden_bias = (None, None) if b is None else b.chunk(2)
    inner = functional.linear(x, w, bias)  # of all steps
    held = Weights(r, hidden_bias, p)
    rows: List[torch.Tensor] = []
    steps = range(x.shape[0])
    for step in reversed(steps) if reverse else steps:
        new = cell(inner[step], held, state, acts)
        row = new[0]
        if lengths is not None:
            # Behind its end a sample keeps its state and gives 0. Backwards it begins at its end.
            inside = (lengths > step).unsqueeze(-1)
            row = torch.where(inside, row, torch.zeros_like(row))
            new = tuple(torch.where(inside, a, b) for a, b in zip(new, state))
        state = new
        rows.append(row)
    return torch.stack(rows[::-1] if reverse else rows), state


OPERATORS = (
    Operator("GRU", 1, gru),
    Operator("LSTM", 1, lstm),
    Operator("RNN", 1, rnn),
)

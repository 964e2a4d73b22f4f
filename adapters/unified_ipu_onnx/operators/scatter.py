"""Putting values into a tensor at places, or onto what is there."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator

_REDUCED: Dict[str, str] = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(node: Node) -> Function:
    """One value for each place along an axis."""
    axis, reduction = node.integer("axis"), _reduction(node)

    def run(x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        places = torch.where(places < 0, places + x.shape[axis], places).long()
        return _scattered(x, axis, places, updates, reduction)

    return run


def scatter_nd(node: Node) -> Function:
    """Slices at the tuples of places in the last axis of the second input."""
    reduction = _reduction(node)

    def run(x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        depth = places.shape[-1]
        rows = torch.zeros(places.shape[:-1], dtype=torch.int64, device=x.device)
        for axis in range(depth):
            place, size = places[..., axis].long(), x.shape[axis]
            rows = rows * size + torch.where(place < 0, place + size, place)
        count = x.shape[:depth].numel()
        flat = x.reshape(count, x.shape[depth:].numel())
        values = updates.reshape(rows.numel(), flat.shape[1])
        index = rows.reshape(-1, 1).expand_as(values)
        return _scattered(flat, 0, index, values, reduction).reshape(x.shape)

    return run


def tensor_scatter(node: Node) -> Function:
    """Write a sequence into a cache from a place of each sample on; it may go round."""
    axis, circular = node.integer("axis", -2), node.text("mode", "linear") == "circular"

    def run(
        cache: torch.Tensor, update: torch.Tensor, starts: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        along = axis % cache.dim()
        steps = torch.arange(update.shape[along], device=cache.device)
        places = steps[None] if starts is None else starts.long()[:, None] + steps
        if circular:
            places = places % cache.shape[along]
        shape = [1] * cache.dim()
        shape[0], shape[along] = places.shape
        return cache.scatter(along, places.reshape(shape).expand_as(update), update)

    return run


def _scattered(
    x: torch.Tensor, axis: int, places: torch.Tensor, updates: torch.Tensor, reduction: str
) -> torch.Tensor:
    if reduction == "none":
        return x.scatter(axis, places, updates)
    if reduction == "add":
        return x.scatter_add(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCED[reduction])


def _reduction(node: Node) -> str:
    reduction = node.text("reduction", "none")
    if reduction != "none" and reduction not in _REDUCED:
        raise node.refuse(f"reduction {reduction!r} is none of none, {', '.join(_REDUCED)}")
    return reduction


def one_hot(node: Node) -> Function:
    """A new axis with one value at the place, and another elsewhere."""
    axis = node.integer("axis", -1)

    def run(places: torch.Tensor, depth: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        size = int(depth[0])
        places = torch.where(places < 0, places + size, places)
        shape = [1] * (places.dim() + 1)
        shape[axis] = size
        chosen = torch.arange(size, device=places.device).reshape(shape)
        return torch.where(places.unsqueeze(axis) == chosen, values[1], values[0])

    return run


OPERATORS = (
    Operator("OneHot", 9, one_hot, ints=(1,)),
    Operator("Scatter", 9, scatter_elements),
    Operator("ScatterElements", 11, scatter_elements),
    Operator("ScatterND", 11, scatter_nd),
    Operator("TensorScatter", 24, tensor_scatter),
)

"""Along an axis in order: sorting, running sums and products, reversal, selection."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator


def top_k(node: Node) -> Function:
    """Largest or smallest elements of an axis and their places; of equal ones the first."""
    axis, largest = node.integer("axis", -1), bool(node.integer("largest", 1))
    fixed = [node.integer("k")]

    def run(x: torch.Tensor, count: Sequence[int] = fixed) -> Tuple[torch.Tensor, torch.Tensor]:
        # Of equal elements torch.topk takes any; a stable sort keeps the first ones first.
        values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
        size = int(count[0])
        return values.narrow(axis, 0, size), places.narrow(axis, 0, size)

    return run


def cumulative(function: Callable[..., torch.Tensor], neutral: int) -> Callable[[Node], Function]:
    """Builder of a running sum or product, its own element in or not, from either end."""

    def build(node: Node) -> Function:
        exclusive, reverse = bool(node.integer("exclusive")), bool(node.integer("reverse"))

        def run(x: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
            axis = int(axes[0])
            if reverse:
                x = x.flip(axis)
            if exclusive:
                first = torch.full_like(x.narrow(axis, 0, 1), neutral)
                x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
            result = function(x, axis, dtype=x.dtype)
            return result.flip(axis) if reverse else result

        return run

    return build


def reverse_sequence(node: Node) -> Function:
    """Turn round the first elements of each sample, as many as its length says."""
    time, batch = node.integer("time_axis"), node.integer("batch_axis", 1)

    def run(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        along, across = [1] * x.dim(), [1] * x.dim()
        along[time], across[batch] = x.shape[time], x.shape[batch]
        step = torch.arange(x.shape[time], device=x.device).reshape(along)
        length = lengths.reshape(across)
        return x.gather(time, torch.where(step < length, length - 1 - step, step).expand_as(x))

    return run


def arg(function: Callable[..., torch.Tensor]) -> Callable[[Node], Function]:
    """Builder of the place of the largest or smallest element; of equal ones first or last."""

    def build(node: Node) -> Function:
        axis, keeps = node.integer("axis"), bool(node.integer("keepdims", 1))
        last = bool(node.integer("select_last_index"))

        def run(x: torch.Tensor) -> torch.Tensor:
            if last:
                return x.shape[axis] - 1 - function(x.flip(axis), dim=axis, keepdim=keeps)
            return function(x, dim=axis, keepdim=keeps)

        return run

    return build


def compress(node: Node) -> Function:
    """Slices of an axis, or elements of all, for which the condition holds."""
    axis: Optional[int] = node.integer("axis") if node.has("axis") else None

    def run(x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        places = condition.nonzero().reshape(-1)
        if axis is None:
            return x.reshape(-1).index_select(0, places)
        return x.index_select(axis, places)

    return run


def unique(node: Node) -> Function:
    """Different elements, or slices of an axis: where first, which for each, and how many."""
    axis: Optional[int] = node.integer("axis") if node.has("axis") else None
    is_sorted, count = bool(node.integer("sorted", 1)), len(node.outputs)

    def run(x: torch.Tensor) -> Any:
        along = 0 if axis is None else axis
        rows = x.reshape(-1) if axis is None else x
        values, inverse, counts = torch.unique(
            rows.detach(), return_inverse=True, return_counts=True, dim=along
        )
        del values
        steps = torch.arange(inverse.numel(), device=x.device)
        first = torch.full_like(counts, inverse.numel())
        first = first.scatter_reduce(0, inverse, steps, "amin")
        if not is_sorted:
            order = torch.argsort(first)
            first, counts = first[order], counts[order]
            inverse = torch.argsort(order)[inverse]
        # Picked from the input, so that the gradient of a value goes to where it stands first.
        picked = rows.index_select(along, first)
        return (picked, first, inverse, counts) if count > 1 else picked

    return run


OPERATORS = (
    Operator("ArgMax", 1, arg(torch.argmax)),
    Operator("ArgMin", 1, arg(torch.argmin)),
    Operator("Compress", 9, compress),
    Operator("CumProd", 26, cumulative(torch.cumprod, 1), ints=(1,)),
    Operator("CumSum", 11, cumulative(torch.cumsum, 0), ints=(1,)),
    Operator("ReverseSequence", 10, reverse_sequence),
    Operator("TopK", 1, top_k, ints=(1,)),
    Operator("Unique", 11, unique),
)

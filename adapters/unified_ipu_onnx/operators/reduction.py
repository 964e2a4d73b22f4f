"""Reductions over axes given by an attribute, or since operator set 13 or 18 by an input."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator

Reduce = Callable[..., torch.Tensor]


def reduction(reduce: Reduce) -> Callable[[Node], Function]:
    """Builder around ``reduce(x, axes, keepdim)``, which gets all axes where none are named."""

    def build(node: Node) -> Function:
        keep = bool(node.integer("keepdims", 1))
        fixed: Optional[List[int]] = node.integers("axes") if node.has("axes") else None
        empty_is_none = bool(node.integer("noop_with_empty_axes"))

        def run(x: torch.Tensor, axes: Optional[Sequence[int]] = fixed) -> torch.Tensor:
            if axes:
                return reduce(x, list(axes), keep)
            if empty_is_none:
                # Each element is a set of its own: a new last axis is reduced away.
                return reduce(x.unsqueeze(-1), [-1], False)
            if x.dim() == 0:
                return reduce(x.unsqueeze(0), [0], False)
            return reduce(x, list(range(x.dim())), keep)

        return run

    return build


def total(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Sum in the type of ``x``."""
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def mean(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Mean in the type of ``x``; of integers cut towards zero."""
    if x.is_floating_point():
        return torch.mean(x, axes, keepdim=keep)
    return torch.mean(x.double(), axes, keepdim=keep).to(x.dtype)


def product(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Product, one axis after the other."""
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def largest(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Maximum; of nothing the lowest value there is."""
    return _extreme(torch.amax, x, axes, keep, lowest=True)


def smallest(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Minimum; of nothing the highest value there is."""
    return _extreme(torch.amin, x, axes, keep, lowest=False)


def _extreme(
    function: Any, x: torch.Tensor, axes: List[int], keep: bool, *, lowest: bool
) -> torch.Tensor:
    if all(x.shape[axis] for axis in axes):
        result: torch.Tensor = function(x, axes, keepdim=keep)
        return result
    if x.is_floating_point():
        value: float = float("-inf") if lowest else float("inf")
    elif x.dtype == torch.bool:
        value = not lowest
    else:
        limits = torch.iinfo(x.dtype)
        value = limits.min if lowest else limits.max
    shape = torch.sum(x, axes, keepdim=keep).shape
    return torch.full(shape, value, dtype=x.dtype, device=x.device)


def norm_1(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Sum of magnitudes."""
    return total(x.abs(), axes, keep)


def norm_2(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Root of the sum of squares; its gradient at 0 is 0."""
    if x.is_floating_point():
        norm: torch.Tensor = torch.linalg.vector_norm(x, 2, axes, keepdim=keep)
        return norm
    return total(x * x, axes, keep).double().sqrt().to(x.dtype)


def sum_of_squares(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Sum of squares."""
    return total(x * x, axes, keep)


def log_of_sum(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Logarithm of the sum."""
    return total(x, axes, keep).log().to(x.dtype)


def log_of_sum_of_exp(x: torch.Tensor, axes: List[int], keep: bool) -> torch.Tensor:
    """Logarithm of the sum of exponentials, without overflow."""
    if not all(x.shape[axis] for axis in axes):
        return total(x, axes, keep).log().to(x.dtype)
    return torch.logsumexp(x, axes, keepdim=keep)


_REDUCTIONS = (
    ("ReduceL1", norm_1),
    ("ReduceL2", norm_2),
    ("ReduceLogSum", log_of_sum),
    ("ReduceLogSumExp", log_of_sum_of_exp),
    ("ReduceMax", largest),
    ("ReduceMean", mean),
    ("ReduceMin", smallest),
    ("ReduceProd", product),
    ("ReduceSum", total),
    ("ReduceSumSquare", sum_of_squares),
)

OPERATORS = tuple(
    Operator(name, 1, reduction(function), ints=(1,)) for name, function in _REDUCTIONS
)

"""Products over named axes, determinants and norms."""

from __future__ import annotations

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator


def einsum(node: Node) -> Function:
    """Sum of products, as the equation says."""
    equation = node.text("equation").replace(" ", "")
    return lambda *operands: torch.einsum(equation, *operands)


def determinant(node: Node) -> Function:
    """Of the last two axes."""
    del node
    return torch.det


def lp_normalization(node: Node) -> Function:
    """Divide by the norm over an axis; where that is 0, the result is 0."""
    axis, order = node.integer("axis", -1), node.integer("p", 2)

    def run(x: torch.Tensor) -> torch.Tensor:
        total = x.abs().sum(axis, keepdim=True) if order == 1 else (x * x).sum(axis, keepdim=True)
        # The root has no gradient at 0, so what is 0 is taken out before it.
        is_zero = total == 0
        total = torch.where(is_zero, torch.ones_like(total), total)
        norm = total if order == 1 else total.sqrt()
        return torch.where(is_zero, torch.zeros_like(x), x / norm)

    return run


OPERATORS = (
    Operator("Det", 11, determinant),
    Operator("Einsum", 12, einsum),
    Operator("LpNormalization", 1, lp_normalization),
)

"""Matrix products."""

from __future__ import annotations

from typing import Optional

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator


def gemm(node: Node) -> Function:
    """``alpha A' B' + beta C``; the usual one is a linear layer."""
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    flip_a, flip_b = bool(node.integer("transA")), bool(node.integer("transB"))
    if not flip_a and alpha == 1.0 and (beta == 1.0 or not node.has_input(2)):
        return _linear if flip_b else _linear_of_transposed

    def run(a: torch.Tensor, b: torch.Tensor, c: Optional[torch.Tensor] = None) -> torch.Tensor:
        a = a.t() if flip_a else a
        b = b.t() if flip_b else b
        if c is None:
            return alpha * (a @ b)
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)

    return run


def _linear(a: torch.Tensor, b: torch.Tensor, c: Optional[torch.Tensor] = None) -> torch.Tensor:
    if c is None or c.dim() == 1:
        return functional.linear(a, b, c)
    return torch.addmm(c, a, b.t())


def _linear_of_transposed(
    a: torch.Tensor, b: torch.Tensor, c: Optional[torch.Tensor] = None
) -> torch.Tensor:
    return torch.mm(a, b) if c is None else torch.addmm(c, a, b)


def matmul(node: Node) -> Function:
    """Matrix product, broadcast over leading axes."""
    del node
    return torch.matmul


OPERATORS = (
    Operator("Gemm", 1, gemm),
    Operator("MatMul", 1, matmul),
)

"""Triangles and diagonals of matrices; bits of integers."""

from __future__ import annotations

from typing import Optional, Sequence

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.operators.pointwise import binary
from unified_ipu_onnx.registry import Function, Operator
from unified_ipu_onnx.tensors import torch_dtype


def trilu(node: Node) -> Function:
    """Upper or lower triangle from a diagonal on; the rest is 0."""
    function = torch.triu if node.integer("upper", 1) else torch.tril

    def run(x: torch.Tensor, diagonal: Optional[Sequence[int]] = None) -> torch.Tensor:
        return function(x, int(diagonal[0]) if diagonal else 0)

    return run


def eye_like(node: Node) -> Function:
    """1 on a diagonal of a matrix of the shape of the input."""
    diagonal = node.integer("k")
    wanted = torch_dtype(node.integer("dtype")) if node.has("dtype") else None

    def run(x: torch.Tensor) -> torch.Tensor:
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
        return (columns - rows.unsqueeze(1) == diagonal).to(wanted or x.dtype)

    return run


def bit_cast(node: Node) -> Function:
    """Same bits, read as another type of the same width."""
    dtype = torch_dtype(node.integer("to"))
    return lambda x: x.contiguous().view(dtype)


OPERATORS = (
    Operator("BitCast", 26, bit_cast),
    Operator("BitwiseAnd", 18, binary(torch.bitwise_and)),
    Operator("BitwiseOr", 18, binary(torch.bitwise_or)),
    Operator("BitwiseXor", 18, binary(torch.bitwise_xor)),
    Operator("EyeLike", 9, eye_like),
    Operator("Trilu", 14, trilu, ints=(1,)),
)

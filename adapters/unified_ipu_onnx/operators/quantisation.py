"""To small integers and back, with a scale for all, for each of an axis or for each block."""

from __future__ import annotations

from typing import Dict, Optional, Tuple

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator
from unified_ipu_onnx.tensors import torch_dtype

_RANGES: Dict[str, Tuple[int, int]] = {
    "torch.uint8": (0, 255),
    "torch.int8": (-128, 127),
    "torch.uint16": (0, 65535),
    "torch.int16": (-32768, 32767),
}


def quantize(node: Node) -> Function:
    """Divide by the scale, round half to even, shift, and cut to the range of the type."""
    axis, block = node.integer("axis", 1), node.integer("block_size")
    wanted = torch_dtype(node.integer("output_dtype")) if node.integer("output_dtype") else None
    precision = torch_dtype(node.integer("precision")) if node.integer("precision") else None

    def run(
        x: torch.Tensor, scale: torch.Tensor, zero: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        dtype = zero.dtype if zero is not None else wanted or torch.uint8
        if str(dtype) not in _RANGES:
            raise node.refuse(f"it gives {dtype}; expected one of {', '.join(_RANGES)}")
        scale = spread(scale, x, axis, block)
        quotient = x.to(precision) / scale.to(precision) if precision else x / scale
        # The type of the quotient may not hold every integer of the range: float16 and 65535.
        whole = torch.round(quotient).to(torch.float32)
        if zero is not None:
            whole = whole + spread(zero, x, axis, block).to(torch.float32)
        low, high = _RANGES[str(dtype)]
        return whole.clamp(low, high).to(torch.int32).to(dtype)

    return run


def dequantize(node: Node) -> Function:
    """Shift back and multiply by the scale."""
    axis, block = node.integer("axis", 1), node.integer("block_size")
    wanted = torch_dtype(node.integer("output_dtype")) if node.integer("output_dtype") else None

    def run(
        x: torch.Tensor, scale: torch.Tensor, zero: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        value = x.to(torch.float32)
        if zero is not None:
            value = value - spread(zero, x, axis, block).to(torch.float32)
        return (value * spread(scale, x, axis, block)).to(wanted or scale.dtype)

    return run


def spread(values: torch.Tensor, x: torch.Tensor, axis: int, block: int) -> torch.Tensor:
    """Lay scales or zero points over a tensor.

    Args:
        values: One, one for each element of the axis, or one for each block of it.
        x: Tensor to lay them over.
        axis: Of ``x``.
        block: Elements a block along the axis; 0 if there are none.
    """
    if values.numel() == 1 and not block:
        return values.reshape(())
    if block:
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


OPERATORS = (
    Operator("DequantizeLinear", 10, dequantize),
    Operator("QuantizeLinear", 10, quantize),
)

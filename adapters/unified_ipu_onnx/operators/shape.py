"""Shapes and glue: what moves elements and computes none."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator
from unified_ipu_onnx.tensors import torch_dtype


def reshape(node: Node) -> Function:
    """To the shape of the second input: 0 keeps an axis, -1 takes what is left."""
    allow_zero = bool(node.integer("allowzero"))

    def run(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return x.reshape(_target(x, shape, allow_zero=allow_zero))

    return run


def reshape_attribute(node: Node) -> Function:
    """To the shape of an attribute; before operator set 5."""
    shape = node.integers("shape")
    return lambda x: x.reshape(_target(x, shape, allow_zero=False))


def _target(x: torch.Tensor, shape: Sequence[int], *, allow_zero: bool) -> List[int]:
    if allow_zero or 0 not in shape:
        return list(shape)
    return [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]


def flatten(node: Node) -> Function:
    """To two axes, cut before ``axis``."""
    axis = node.integer("axis", 1)

    def run(x: torch.Tensor) -> torch.Tensor:
        if axis == 1 and x.dim() > 1:
            return x.flatten(1)
        first = axis + x.dim() if axis < 0 else axis
        return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))

    return run


def transpose(node: Node) -> Function:
    """Permute the axes; reversed if not said how."""
    order = node.integers("perm")
    if order:
        return lambda x: x.permute(order)
    return lambda x: x.permute(*range(x.dim() - 1, -1, -1))


def concat(node: Node) -> Function:
    """Join along an axis."""
    axis = node.integer("axis", 1 if node.opset < 4 else 0)
    return lambda *parts: torch.cat(parts, axis)


def squeeze(node: Node) -> Function:
    """Drop axes of size 1: those of the attribute, of the second input, or all."""
    fixed: Optional[List[int]] = node.integers("axes") if node.has("axes") else None

    def run(x: torch.Tensor, axes: Optional[Sequence[int]] = fixed) -> torch.Tensor:
        if axes is None:
            return x.squeeze()
        for axis in sorted((a % x.dim() for a in axes), reverse=True):
            if x.shape[axis] != 1:
                raise node.refuse(f"axis {axis} of shape {list(x.shape)} is not of size 1")
            x = x.squeeze(axis)
        return x

    return run


def unsqueeze(node: Node) -> Function:
    """Put in axes of size 1, counted in the result."""
    fixed = node.integers("axes")

    def run(x: torch.Tensor, axes: Sequence[int] = fixed) -> torch.Tensor:
        num_axes = x.dim() + len(axes)
        for axis in sorted(a % num_axes for a in axes):
            x = x.unsqueeze(axis)
        return x

    return run


def identity(node: Node) -> Function:
    """Give what is given: for values that are no tensors; tensors are renamed when compiled."""
    del node
    return lambda x: x


def constant(node: Node) -> Function:
    """Value of whichever attribute is set."""
    value = _constant_value(node)
    return lambda: value


def _constant_value(node: Node) -> Any:
    for name, value in node.attributes.items():
        if name == "value":
            return value
        if name in {"value_float", "value_floats"}:
            return torch.tensor(value, dtype=torch.float32)
        if name in {"value_int", "value_ints"}:
            return torch.tensor(value, dtype=torch.int64)
    raise node.lacks(f"a constant of kind {sorted(node.attributes)} is not supported")


def cast(node: Node) -> Function:
    """To another element type."""
    if isinstance(node.attributes["to"], str):  # operator sets 1 to 5 spell it out
        dtype = torch_dtype(_TYPE_NUMBERS[node.text("to").upper()])
    else:
        dtype = torch_dtype(node.integer("to"))
    return lambda x: x.to(dtype)


def cast_like(node: Node) -> Function:
    """To the element type of the second input."""
    del node
    return lambda x, other: x.to(other.dtype)


def shape(node: Node) -> Function:
    """Sizes of the axes, or of a range of them."""
    start = node.integer("start")
    end = node.integer("end") if node.has("end") else None
    mode = node.mode
    return lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64, device=mode.device)


def size(node: Node) -> Function:
    """Number of elements."""
    mode = node.mode
    return lambda x: torch.tensor(x.numel(), dtype=torch.int64, device=mode.device)


def constant_of_shape(node: Node) -> Function:
    """One value everywhere; 0.0 in float32 if none is given."""
    value = node.attributes.get("value", torch.zeros(1))
    number, dtype, mode = value.item(), value.dtype, node.mode
    return lambda sizes: torch.full(tuple(sizes), number, dtype=dtype, device=mode.device)


def arange(node: Node) -> Function:
    """From a start to before a limit by a step."""
    mode = node.mode

    def run(start: torch.Tensor, limit: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        numbers = (float, int)[not start.is_floating_point()]
        first, last, step = numbers(start), numbers(limit), numbers(delta)
        # The standard counts first and then multiplies; torch's own rounding differs at the end.
        count = max(-int((first - last) // step), 0)
        places = torch.arange(count, device=mode.device)
        return (first + places * step).to(start.dtype)

    return run


def non_zero(node: Node) -> Function:
    """Places of what is not 0, one row an axis."""
    del node
    return lambda x: torch.nonzero(x).t()


_TYPE_NUMBERS = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7,
    "STRING": 8, "BOOL": 9, "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13,
}  # fmt: skip


OPERATORS = (
    Operator("Cast", 1, cast),
    Operator("CastLike", 15, cast_like),
    Operator("Concat", 1, concat),
    Operator("Constant", 1, constant),
    Operator("ConstantOfShape", 9, constant_of_shape, ints=(0,)),
    Operator("Flatten", 1, flatten),
    Operator("Identity", 1, identity),
    Operator("NonZero", 9, non_zero),
    Operator("Range", 11, arange),
    Operator("Reshape", 1, reshape_attribute),
    Operator("Reshape", 5, reshape, ints=(1,)),
    Operator("Shape", 1, shape),
    Operator("Size", 1, size),
    Operator("Squeeze", 1, squeeze, ints=(1,)),
    Operator("Transpose", 1, transpose),
    Operator("Unsqueeze", 1, unsqueeze, ints=(1,)),
)

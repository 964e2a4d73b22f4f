"""Arithmetic with shapes, by numpy on the host.

What is computed from the shape of a tensor and from constants ends as the shape of another tensor,
or its slice: no device need see it, and no device is waited for.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any, Callable, List, Mapping, Optional, Sequence

import numpy as np
from onnx import AttributeProto, TensorProto

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator, Registry

Array = Any  # numpy arrays and numpy scalars of int64, int32 and bool


_WHOLE: Mapping[int, Any] = {
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
    TensorProto.BOOL: np.bool_,
}


def stays(op_type: str, attributes: Mapping[str, AttributeProto]) -> bool:
    """Whether the result is whole too; what becomes a float leaves the host."""
    if op_type == "Cast":
        return attributes["to"].i in _WHOLE
    if op_type == "ConstantOfShape":
        return "value" in attributes and attributes["value"].t.data_type in _WHOLE
    return True


def plain(function: Callable[..., Array]) -> Callable[[Node], Function]:
    """Builder of an operator without attributes."""
    return lambda _: function


def shape(node: Node) -> Function:
    """Sizes of the axes, or of a range of them."""
    start = node.integer("start")
    end = node.integer("end") if node.has("end") else None
    return lambda x: np.array(x.shape[start:end], np.int64)


def size(node: Node) -> Function:
    """Number of elements."""
    del node
    return lambda x: np.array(x.numel(), np.int64)


def gather(node: Node) -> Function:
    """Elements at places; negative ones count from the end."""
    axis = node.integer("axis")
    if axis == 0:
        return operator.getitem
    return lambda x, places: np.take(x, places, axis)


def concat(node: Node) -> Function:
    """Join along an axis."""
    axis = node.integer("axis")
    return lambda *parts: np.concatenate(parts, axis)


def cast(node: Node) -> Function:
    """To another whole type."""
    kind: Any = _WHOLE[node.integer("to")]
    return lambda x: np.asarray(x).astype(kind)


def unsqueeze(node: Node) -> Function:
    """Put in axes of size 1, counted in the result."""
    fixed = node.integers("axes")

    def run(x: Array, axes: Sequence[int] = fixed) -> Array:
        sizes, num_axes = list(x.shape), len(x.shape) + len(axes)
        for axis in sorted(a % num_axes for a in axes):
            sizes.insert(axis, 1)
        return x.reshape(sizes)  # a third of what numpy's own expand_dims takes

    return run


def squeeze(node: Node) -> Function:
    """Drop axes of size 1."""
    fixed: Optional[List[int]] = node.integers("axes") if node.has("axes") else None
    return lambda x, axes=fixed: np.squeeze(x, None if axes is None else tuple(axes))


def slice_attributes(node: Node) -> Function:
    """Cut by attributes; before operator set 10."""
    starts, ends = node.integers("starts"), node.integers("ends")
    axes = node.integers("axes", range(len(starts)))
    return lambda x: cut(x, starts, ends, axes)


def cut(
    x: Array,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Optional[Sequence[int]] = None,
    steps: Optional[Sequence[int]] = None,
) -> Array:
    """Cut along axes."""
    index = [slice(None)] * np.ndim(x)
    along = range(len(starts)) if axes is None else axes
    for start, end, axis, step in zip(starts, ends, along, steps or [1] * len(starts)):
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def split(node: Node) -> Function:
    """Cut an axis into parts."""
    axis, num_parts = node.integer("axis"), len(node.outputs)
    fixed: Optional[List[int]] = node.integers("split") if node.has("split") else None

    def run(x: Array, sizes: Optional[Sequence[int]] = fixed) -> Any:
        width = -(-x.shape[axis] // num_parts)
        ends = np.cumsum(sizes)[:-1] if sizes else range(width, width * num_parts, width)
        parts = np.split(x, list(ends), axis)
        return parts if num_parts > 1 else parts[0]

    return run


def reduction(function: Any) -> Callable[[Node], Function]:
    """Builder of a reduction over axes of an attribute or an input."""

    def build(node: Node) -> Function:
        keep, skips = bool(node.integer("keepdims", 1)), node.integer("noop_with_empty_axes")
        fixed: Optional[List[int]] = node.integers("axes") if node.has("axes") else None

        def run(x: Array, axes: Optional[Sequence[int]] = fixed) -> Array:
            if not axes and skips:
                return x
            along = tuple(axes) if axes else None
            return function(x, axis=along, keepdims=keep).astype(x.dtype)

        return run

    return build


def divide(a: Array, b: Array) -> Array:
    """Quotient, cut towards zero."""
    quotient = np.abs(a) // np.abs(b)
    return (quotient * np.sign(a) * np.sign(b)).astype(np.asarray(a).dtype)


def modulo(node: Node) -> Function:
    """Remainder with the sign of the divisor, or with ``fmod`` of the dividend."""
    return np.fmod if node.integer("fmod") else np.mod


def constant_of_shape(node: Node) -> Function:
    """One whole value everywhere."""
    value = node.attributes["value"].numpy().reshape(-1)[0]
    return lambda sizes: np.full(tuple(sizes), value)


def expand(x: Array, sizes: Sequence[int]) -> Array:
    """Broadcast with a shape."""
    return np.broadcast_to(x, np.broadcast(x, np.empty(tuple(sizes), np.bool_)).shape)


def reshape(node: Node) -> Function:
    """To a shape; 0 keeps an axis unless ``allowzero``."""
    keeps = not node.integer("allowzero")

    def run(x: Array, sizes: Sequence[int]) -> Array:
        return np.reshape(
            x, [x.shape[i] if keeps and size == 0 else size for i, size in enumerate(sizes)]
        )

    return run


def arange(start: Array, limit: Array, step: Array) -> Array:
    """From a start to before a limit."""
    return np.arange(int(start), int(limit), int(step), dtype=np.asarray(start).dtype)


_PLAIN = (
    ("Abs", 1, np.abs), ("Add", 7, np.add), ("And", 7, np.logical_and), ("Div", 7, divide),
    ("Equal", 7, np.equal), ("Greater", 7, np.greater), ("GreaterOrEqual", 12, np.greater_equal),
    ("Less", 7, np.less), ("LessOrEqual", 12, np.less_equal), ("Mul", 7, np.multiply),
    ("Neg", 1, np.negative), ("Not", 1, np.logical_not), ("Or", 7, np.logical_or),
    ("Range", 11, arange), ("Sub", 7, np.subtract), ("Where", 9, np.where),
)  # fmt: skip

ON_HOST = Registry(
    (
        *(Operator(name, since, plain(function)) for name, since, function in _PLAIN),
        Operator("Cast", 6, cast),
        Operator("Concat", 4, concat),
        Operator("ConstantOfShape", 9, constant_of_shape, ints=(0,)),
        Operator("Expand", 8, plain(expand), ints=(1,)),
        Operator("Gather", 1, gather),
        Operator("Max", 8, plain(lambda *values: reduce(np.maximum, values))),
        Operator("Min", 8, plain(lambda *values: reduce(np.minimum, values))),
        Operator("Mod", 10, modulo),
        Operator("ReduceMax", 1, reduction(np.max), ints=(1,)),
        Operator("ReduceMin", 1, reduction(np.min), ints=(1,)),
        Operator("ReduceProd", 1, reduction(np.prod), ints=(1,)),
        Operator("ReduceSum", 1, reduction(np.sum), ints=(1,)),
        Operator("Reshape", 5, reshape, ints=(1,)),
        Operator("Shape", 1, shape),
        Operator("Size", 1, size),
        Operator("Slice", 1, slice_attributes),
        Operator("Slice", 10, plain(cut), ints=(1, 2, 3, 4)),
        Operator("Split", 1, split, ints=(1,)),
        Operator("Squeeze", 1, squeeze, ints=(1,)),
        Operator("Unsqueeze", 1, unsqueeze, ints=(1,)),
    )
)

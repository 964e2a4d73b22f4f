"""Picking, cutting and repeating elements."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.operators.windows import pad as pad_last_axes
from unified_ipu_onnx.registry import Function, Operator


def gather(node: Node) -> Function:
    """Slices of an axis at the places of any shape; negative ones count from the end."""
    axis = node.integer("axis")
    known = node.constant(1)
    if known is not None and known.dim() == 0:
        one = int(known)
        return lambda x, _: x.select(axis, one)
    may_be_negative = known is None or bool((known < 0).any())

    def run(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        if may_be_negative:
            places = torch.where(places < 0, places + x.shape[axis], places)
        if axis == 0 and x.dim() == 2 and places.dim() and x.is_floating_point():
            return torch.nn.functional.embedding(places, x)
        first = axis % x.dim()
        picked = torch.index_select(x, first, places.reshape(-1))
        return picked.reshape(x.shape[:first] + places.shape + x.shape[first + 1 :])

    return run


def gather_elements(node: Node) -> Function:
    """One element of an axis for each place."""
    axis = node.integer("axis")

    def run(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        places = torch.where(places < 0, places + x.shape[axis], places)
        return torch.gather(x, axis, places.long())

    return run


def gather_nd(node: Node) -> Function:
    """Slices at the tuples of places in the last axis, behind ``batch_dims`` common axes."""
    num_batch = node.integer("batch_dims")

    def run(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        index: List[Any] = []
        for axis in range(num_batch):
            shape = [1] * (places.dim() - 1)
            shape[axis] = x.shape[axis]
            index.append(torch.arange(x.shape[axis], device=x.device).reshape(shape))
        index += list(places.unbind(-1))
        return x[tuple(index)]

    return run


def slice_attributes(node: Node) -> Function:
    """Cut by attributes; before operator set 10."""
    starts, ends = node.integers("starts"), node.integers("ends")
    axes = node.integers("axes", range(len(starts)))
    return lambda x: _cut(x, starts, ends, axes, [1] * len(starts))


def slice_inputs(node: Node) -> Function:
    """Cut by inputs, with steps of either sign."""
    known = _known_cut(node)
    if known is not None:
        index = known
        return lambda x, *_: x[index]

    def run(
        x: torch.Tensor,
        starts: Sequence[int],
        ends: Sequence[int],
        axes: Optional[Sequence[int]] = None,
        steps: Optional[Sequence[int]] = None,
    ) -> torch.Tensor:
        along = range(len(starts)) if axes is None else axes
        return _cut(x, starts, ends, along, steps or [1] * len(starts))

    return run


def _known_cut(node: Node) -> Optional[Tuple[slice, ...]]:
    """Index for one axis counted from the front, forward, all of it known before; else None."""
    numbers: List[int] = []
    for place, absent in ((1, None), (2, None), (3, 0), (4, 1)):
        value = node.constant(place)
        if value is None and absent is not None and not node.has_input(place):
            numbers.append(absent)
        elif value is not None and value.numel() == 1:
            numbers.append(int(value))
        else:
            return None
    start, end, axis, step = numbers
    return (slice(None),) * axis + (slice(start, end, step),) if axis >= 0 and step > 0 else None


def _cut(
    x: torch.Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> torch.Tensor:
    index = [slice(None)] * x.dim()
    flipped: List[int] = []
    for start, end, axis, step in zip(starts, ends, axes, steps):
        chosen = range(*slice(start, end, step).indices(x.shape[axis]))
        if step < 0:  # torch has no negative steps
            flipped.append(axis)
            chosen = chosen[::-1]
        index[axis] = slice(chosen.start, max(chosen.stop, chosen.start), chosen.step)
    cut = x[tuple(index)]
    return cut.flip(flipped) if flipped else cut


def split(node: Node) -> Function:
    """Cut an axis into parts of the given sizes, or of equal ones with a smaller last."""
    axis, num_parts = node.integer("axis"), len(node.outputs)
    fixed: Optional[List[int]] = node.integers("split") if node.has("split") else None

    def run(x: torch.Tensor, sizes: Optional[Sequence[int]] = fixed) -> Any:
        if sizes is None:
            size = -(-x.shape[axis] // num_parts)
            left = x.shape[axis] - size * (num_parts - 1)
            sizes = [size] * (num_parts - 1) + [left]
        parts = torch.split(x, list(sizes), axis)
        return parts if num_parts > 1 else parts[0]

    return run


def tile(node: Node) -> Function:
    """Repeat along every axis."""
    del node
    return lambda x, repeats: x.repeat(list(repeats))


def tile_axis(node: Node) -> Function:
    """Repeat along one axis; before operator set 6."""
    del node

    def run(x: torch.Tensor, tiles: Sequence[int], axis: Sequence[int]) -> torch.Tensor:
        repeats = [1] * x.dim()
        repeats[int(axis[0])] = int(tiles[0])  # then of the type of x
        return x.repeat(repeats)

    return run


def expand(node: Node) -> Function:
    """Broadcast with a shape."""
    del node

    def run(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        more = len(shape) - x.dim()
        sizes = [1] * -more + list(shape) if more < 0 else list(shape)
        own = [1] * max(more, 0) + list(x.shape)
        return x.expand([a if b == 1 else b for a, b in zip(own, sizes)])

    return run


def pad_attributes(node: Node) -> Function:
    """Pad by attributes; before operator set 11."""
    pads = node.integers("pads" if node.has("pads") else "paddings")
    mode, value = node.text("mode", "constant"), node.number("value")
    return lambda x: _padded(x, pads, mode, value, range(x.dim()))


def pad_inputs(node: Node) -> Function:
    """Pad by inputs; negative numbers cut."""
    mode = node.text("mode", "constant")

    def run(
        x: torch.Tensor,
        pads: Sequence[int],
        value: Optional[Sequence[float]] = None,
        axes: Optional[Sequence[int]] = None,
    ) -> torch.Tensor:
        along = range(x.dim()) if axes is None else axes
        return _padded(x, pads, mode, value[0] if value else 0.0, along)

    return run


def _padded(
    x: torch.Tensor, pads: Sequence[int], mode: str, value: float, axes: Sequence[int]
) -> torch.Tensor:
    sides: List[Tuple[int, int]] = [(0, 0)] * x.dim()
    for index, axis in enumerate(axes):
        sides[axis % x.dim()] = (pads[index], pads[len(axes) + index])
    if mode == "constant":
        return pad_last_axes(x, sides, value=value)
    for axis, (before, after) in enumerate(sides):
        if before or after:
            x = _mirrored(x, axis, before, after, mode)
    return x


def _mirrored(x: torch.Tensor, axis: int, before: int, after: int, mode: str) -> torch.Tensor:
    # What a negative number cuts is gone before the rest is mirrored.
    x = x.narrow(axis, max(-before, 0), x.shape[axis] - max(-before, 0) - max(-after, 0))
    size = x.shape[axis]
    places = torch.arange(-max(before, 0), size + max(after, 0), device=x.device)
    if mode == "edge":
        places = places.clamp(0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = places % period
        places = torch.where(places >= size, period - places, places)
    return x.index_select(axis, places)


OPERATORS = (
    Operator("Expand", 8, expand, ints=(1,)),
    Operator("Gather", 1, gather),
    Operator("GatherElements", 11, gather_elements),
    Operator("GatherND", 11, gather_nd),
    Operator("Pad", 1, pad_attributes),
    Operator("Pad", 11, pad_inputs, ints=(1, 2, 3)),
    Operator("Slice", 1, slice_attributes),
    Operator("Slice", 10, slice_inputs, ints=(1, 2, 3, 4)),
    Operator("Split", 1, split, ints=(1,)),
    Operator("Tile", 1, tile_axis, ints=(1, 2)),
    Operator("Tile", 6, tile, ints=(1,)),
)

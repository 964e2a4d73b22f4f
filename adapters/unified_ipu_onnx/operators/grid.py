"""Reading a picture between its elements, at places that the graph computes."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator

_MODES: Dict[str, str] = {"linear": "bilinear", "cubic": "bicubic"}  # names since operator set 20


def grid_sample(node: Node) -> Function:
    """At normalised coordinates, ``[batch, ..., axes]``."""
    mode = node.text("mode", "linear")
    mode, padding = _MODES.get(mode, mode), node.text("padding_mode", "zeros")
    corners = bool(node.integer("align_corners"))

    def run(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        if x.dim() not in {4, 5} or (x.dim() == 5 and mode == "bicubic"):
            raise node.refuse(
                f"input of shape {list(x.shape)} in mode {mode}; expected two spatial axes, or "
                "three in a mode other than cubic"
            )
        return functional.grid_sample(
            x, grid.to(x.dtype), mode=mode, padding_mode=padding, align_corners=corners
        )

    return run


def deform_conv(node: Node) -> Function:
    """Convolution whose taps are moved by offsets and weighted by a mask."""
    group, offset_groups = node.integer("group", 1), node.integer("offset_group", 1)
    dilations, strides = node.integers("dilations", (1, 1)), node.integers("strides", (1, 1))
    pads = node.integers("pads", (0, 0, 0, 0))

    def run(
        x: torch.Tensor,
        weight: torch.Tensor,
        offset: torch.Tensor,
        bias: Optional[torch.Tensor] = None,
        mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        if x.dim() != 4:
            raise node.refuse(f"input of shape {list(x.shape)}; only two spatial axes are done")
        batch, channels = x.shape[:2]
        kernel, sizes = weight.shape[2:], offset.shape[2:]
        taps = kernel[0] * kernel[1]
        moved = offset.reshape(batch, offset_groups, taps, 2, *sizes)
        places = []
        for axis in range(2):
            start = torch.arange(sizes[axis], device=x.device) * strides[axis] - pads[axis]
            tap = torch.arange(kernel[axis], device=x.device) * dilations[axis]
            # Taps lie row by row: the row changes slowly, the column fast.
            taps_first = (
                tap.repeat_interleave(kernel[1]) if axis == 0 else tap.repeat(kernel[0])
            ).reshape(taps, 1, 1)
            along = start.reshape((-1, 1) if axis == 0 else (1, -1))
            places.append(moved[:, :, :, axis] + (taps_first + along).to(x.dtype))
        parts = x.reshape(batch, offset_groups, channels // offset_groups, *x.shape[2:])
        columns = _between(parts, places[0], places[1])
        if mask is not None:
            columns = columns * mask.reshape(batch, offset_groups, 1, taps, *sizes)
        columns = columns.reshape(batch, group, channels // group * taps, -1)
        rows = weight.reshape(group, weight.shape[0] // group, -1)
        result = torch.matmul(rows, columns).reshape(batch, -1, *sizes)
        return result if bias is None else result + bias.reshape(1, -1, 1, 1)

    return run


def _between(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Bilinear, 0 outside: ``[n, g, c, h, w]`` at ``[n, g, ...]`` gives ``[n, g, c, ...]``."""
    height, width = x.shape[-2:]
    flat = x.flatten(-2)
    top, left = row.floor(), column.floor()
    total = None
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        y, z = top + down, left + right
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
        share = (1 - (row - y).abs()) * (1 - (column - z).abs()) * inside
        index = (y.clamp(0, height - 1) * width + z.clamp(0, width - 1)).long()
        index = index.flatten(2).unsqueeze(2).expand(-1, -1, x.shape[2], -1)
        part = flat.gather(-1, index) * share.flatten(2).unsqueeze(2)
        total = part if total is None else total + part
    found: Any = total
    return found.reshape(*x.shape[:3], *row.shape[2:])  # type: ignore[no-any-return]


def roi_align(node: Node) -> Function:
    """Mean or largest of samples in the cells of regions: ``[regions, channels, h, w]``."""
    usual = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half = node.text("coordinate_transformation_mode", usual) == "half_pixel"
    mode, scale = node.text("mode", "avg"), node.number("spatial_scale", 1.0)
    size = (node.integer("output_height", 1), node.integer("output_width", 1))
    ratio = node.integer("sampling_ratio")

    def run(x: torch.Tensor, regions: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        # x1, y1, x2, y2; from here on (y, x).
        low = regions[:, [1, 0]] * scale - (0.5 if half else 0.0)
        extent = regions[:, [3, 2]] * scale - (0.5 if half else 0.0) - low
        if not half:
            extent = extent.clamp(min=1.0)
        cell = extent / torch.tensor(size, dtype=x.dtype, device=x.device)
        counts = [(ratio, ratio)] * len(regions)
        if ratio <= 0:  # as many samples as a cell has elements, a number of its own a region
            counts = [(math.ceil(a), math.ceil(b)) for a, b in cell.tolist()]
        result = x.new_zeros(len(regions), x.shape[1], *size)
        for count in sorted(set(counts)):
            if min(count) > 0:
                members = [index for index, other in enumerate(counts) if other == count]
                chosen = torch.tensor(members, device=x.device)
                samples = _samples(x, batch[chosen], low[chosen], cell[chosen], size, count)
                result = result.index_copy(0, chosen, _pooled(samples, mode))
        return result

    return run


def _samples(
    x: torch.Tensor,
    batch: torch.Tensor,
    low: torch.Tensor,
    cell: torch.Tensor,
    size: Tuple[int, int],
    count: Tuple[int, int],
) -> List[torch.Tensor]:
    """What the four neighbours contribute: ``[regions, h, samples, w, samples, channels]``."""
    lows, highs, shares = [], [], []
    for axis in range(2):
        steps = torch.arange(size[axis], device=x.device).reshape(-1, 1)
        inner = (torch.arange(count[axis], device=x.device) + 0.5) / count[axis]
        place = low[:, axis, None, None] + (steps + inner) * cell[:, axis, None, None]
        length = x.shape[2 + axis]
        outside = (place < -1.0) | (place > length)
        place = place.clamp(0, length - 1)
        first = place.detach().floor().clamp(max=max(length - 2, 0))
        share = torch.stack([1 - (place - first), place - first])
        lows.append(first.long())
        highs.append((first.long() + 1).clamp(max=length - 1))
        shares.append(share.masked_fill(outside, 0.0))
    found = []
    images = batch.long()[:, None, None, None, None]
    for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
        y = (highs if down else lows)[0][:, :, :, None, None]
        z = (highs if right else lows)[1][:, None, None]
        share = shares[0][down][:, :, :, None, None] * shares[1][right][:, None, None]
        found.append(x[images, :, y, z] * share.unsqueeze(-1))
    return found


def _pooled(parts: List[torch.Tensor], mode: str) -> torch.Tensor:
    if mode == "max":  # the largest contribution of a neighbour, as the standard has it
        return torch.stack(parts).amax((0, 3, 5)).permute(0, 3, 1, 2)
    return sum(parts[1:], parts[0]).mean((2, 4)).permute(0, 3, 1, 2)


def affine_grid(node: Node) -> Function:
    """Places that an affine map of the output's elements gives, for a size ``[N, C, ...]``.

    The standard's own body loses the first axis of a batch of one.
    """
    corners = bool(node.integer("align_corners"))
    return lambda theta, size: functional.affine_grid(theta, size, align_corners=corners)


OPERATORS = (
    Operator("AffineGrid", 20, affine_grid, ints=(1,)),
    Operator("DeformConv", 19, deform_conv),
    Operator("GridSample", 16, grid_sample),
    Operator("RoiAlign", 10, roi_align),
)

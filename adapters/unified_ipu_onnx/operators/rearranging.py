"""Blocks of elements moved between channels and spatial axes."""

from __future__ import annotations

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator


def depth_to_space(node: Node) -> Function:
    """Channels into blocks: ``[N, C, ...]`` to ``[N, C / b^d, b ..., ]``, d the spatial axes."""
    block, channel_first = node.integer("blocksize"), node.text("mode", "DCR") == "CRD"

    def run(x: torch.Tensor) -> torch.Tensor:
        sizes, num_axes = list(x.shape[2:]), x.dim() - 2
        channels = x.shape[1] // block**num_axes
        blocks = [block] * num_axes
        if channel_first:
            x = x.reshape([x.shape[0], channels, *blocks, *sizes])
        else:
            x = x.reshape([x.shape[0], *blocks, channels, *sizes]).movedim(num_axes + 1, 1)
        order = [0, 1]
        for axis in range(num_axes):
            order += [2 + num_axes + axis, 2 + axis]
        return x.permute(order).reshape([x.shape[0], channels, *(s * block for s in sizes)])

    return run


def space_to_depth(node: Node) -> Function:
    """Blocks into channels: ``[N, C, ...]`` to ``[N, b^d C, / b ...]``, d the spatial axes."""
    block, channel_first = node.integer("blocksize"), node.text("mode", "DCR") == "CRD"

    def run(x: torch.Tensor) -> torch.Tensor:
        num_axes, channels = x.dim() - 2, x.shape[1]
        sizes = [size // block for size in x.shape[2:]]
        cut = [part for size in sizes for part in (size, block)]
        x = x.reshape([x.shape[0], channels, *cut])
        inner = [3 + 2 * axis for axis in range(num_axes)]
        outer = [2 + 2 * axis for axis in range(num_axes)]
        first = [1, *inner] if channel_first else [*inner, 1]
        return x.permute([0, *first, *outer]).reshape([x.shape[0], -1, *sizes])

    return run


OPERATORS = (
    Operator("DepthToSpace", 1, depth_to_space),
    Operator("SpaceToDepth", 1, space_to_depth),
)

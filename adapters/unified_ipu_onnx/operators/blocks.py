"""Laying blocks and pooled elements back where they came from."""

from __future__ import annotations

from typing import List, Optional, Sequence

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator


def col2im(node: Node) -> Function:
    """Add up the columns of blocks, ``[batch, channels * block, places]``, in an image."""
    pads = node.integers("pads")
    dilations, strides = node.integers("dilations"), node.integers("strides")

    def run(x: torch.Tensor, image: Sequence[int], block: Sequence[int]) -> torch.Tensor:
        num_axes = len(image)
        sides = pads or [0] * (2 * num_axes)
        sizes = [image[axis] + sides[axis] + sides[num_axes + axis] for axis in range(num_axes)]
        place = torch.zeros([1] * (2 * num_axes), dtype=torch.int64, device=x.device)
        for axis, size in enumerate(sizes):
            step = strides[axis] if strides else 1
            spread = dilations[axis] if dilations else 1
            count = (size - spread * (block[axis] - 1) - 1) // step + 1
            shape = [1] * (2 * num_axes)
            shape[axis] = block[axis]
            inner = (torch.arange(block[axis], device=x.device) * spread).reshape(shape)
            shape[axis], shape[num_axes + axis] = 1, count
            outer = (torch.arange(count, device=x.device) * step).reshape(shape)
            place = place * size + inner + outer
        taps = _product(block)
        parts = x.reshape(x.shape[0], x.shape[1] // taps, -1)
        padded = x.new_zeros(*parts.shape[:2], _product(sizes))
        padded = padded.index_add(2, place.reshape(-1), parts)
        result = padded.reshape(*parts.shape[:2], *sizes)
        for axis, size in enumerate(image):
            result = result.narrow(2 + axis, sides[axis], size)
        return result

    return run


def max_unpool(node: Node) -> Function:
    """Put each element at its place in a tensor of zeros; places count in the whole tensor."""
    kernel = node.integers("kernel_shape")
    strides = node.integers("strides") or [1] * len(kernel)
    pads = node.integers("pads") or [0] * (2 * len(kernel))

    def run(
        x: torch.Tensor, places: torch.Tensor, wanted: Optional[Sequence[int]] = None
    ) -> torch.Tensor:
        shape: List[int] = list(x.shape[:2])
        for axis, width in enumerate(kernel):
            cut = pads[axis] + pads[len(kernel) + axis]
            shape.append((x.shape[2 + axis] - 1) * strides[axis] - cut + width)
        flat = x.new_zeros(_product(shape)).scatter(0, places.reshape(-1), x.reshape(-1))
        result = flat.reshape(shape)
        if wanted is None:
            return result
        more: List[int] = []
        for size, own in zip(reversed(wanted), reversed(shape)):
            more += [0, size - own]
        return torch.nn.functional.pad(result, more)

    return run


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


OPERATORS = (
    Operator("Col2Im", 18, col2im, ints=(1, 2)),
    Operator("MaxUnpool", 9, max_unpool, ints=(2,)),
)

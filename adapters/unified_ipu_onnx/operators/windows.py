"""Where windows of convolutions and pools lie: padding of each side, explicit or automatic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node


@dataclass(frozen=True)
class Window:
    """Attributes that convolutions and pools share; empty lists stand for their defaults.

    Attributes:
        strides: One a spatial axis.
        dilations: One a spatial axis.
        pads: Begins of all spatial axes, then their ends.
        auto_pad: ``NOTSET``, ``VALID``, ``SAME_UPPER`` or ``SAME_LOWER``.
        ceil_mode: Whether a last window may hang over the end.
    """

    strides: Tuple[int, ...]
    dilations: Tuple[int, ...]
    pads: Tuple[int, ...]
    auto_pad: str
    ceil_mode: bool

    @classmethod
    def of(cls, node: Node) -> Window:
        """Read a node's attributes."""
        return cls(
            tuple(node.integers("strides")),
            tuple(node.integers("dilations")),
            tuple(node.integers("pads")),
            node.text("auto_pad", "NOTSET"),
            bool(node.integer("ceil_mode")),
        )

    def stride(self, num_axes: int) -> List[int]:
        """Step of the window on each axis."""
        return list(self.strides or (1,) * num_axes)

    def dilation(self, num_axes: int) -> List[int]:
        """Distance of the window's elements on each axis."""
        return list(self.dilations or (1,) * num_axes)

    def padding(self, sizes: Sequence[int], kernel: Sequence[int]) -> List[Tuple[int, int]]:
        """Rows put before and after, one pair an axis.

        Args:
            sizes: Of the spatial axes of the input.
            kernel: Size of the window.
        """
        num_axes = len(kernel)
        if self.auto_pad in {"NOTSET", ""}:
            pads = self.pads or (0,) * (2 * num_axes)
            return list(zip(pads[:num_axes], pads[num_axes:]))
        if self.auto_pad == "VALID":
            return [(0, 0)] * num_axes
        found = []
        steps = zip(sizes, kernel, self.stride(num_axes), self.dilation(num_axes))
        for size, width, stride, dilation in steps:
            reach = dilation * (width - 1) + 1
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
            small, large = total // 2, total - total // 2
            found.append((small, large) if self.auto_pad == "SAME_UPPER" else (large, small))
        return found


def symmetric(padding: Sequence[Tuple[int, int]]) -> bool:
    """Whether both ends of every axis are padded alike, as torch's own padding can."""
    return all(before == after for before, after in padding)


def pad(x: torch.Tensor, padding: Sequence[Tuple[int, int]], value: float = 0.0) -> torch.Tensor:
    """Pad the last axes; torch counts them from the last."""
    flat = [side for pair in reversed(padding) for side in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x


def overhang(
    sizes: Sequence[int], kernel: Sequence[int], window: Window, padding: Sequence[Tuple[int, int]]
) -> List[int]:
    """Rows that the last window of ``ceil_mode`` hangs over the padded end, one number an axis.

    A window that would start behind the input and its first padding is left out, as ONNX says
    since 1.16 and torch always did.

    Args:
        sizes: Of the spatial axes of the input.
        kernel: Size of the window.
        window: The other attributes.
        padding: Of each axis.
    """
    num_axes = len(kernel)
    if not window.ceil_mode:
        return [0] * num_axes
    found = []
    for axis, (size, (before, after)) in enumerate(zip(sizes, padding)):
        stride = window.stride(num_axes)[axis]
        reach = window.dilation(num_axes)[axis] * (kernel[axis] - 1) + 1
        count = -(-(size + before + after - reach) // stride) + 1
        if (count - 1) * stride >= size + before:
            count -= 1
        found.append(max((count - 1) * stride + reach - size - before - after, 0))
    return found

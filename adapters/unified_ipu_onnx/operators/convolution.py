"""Convolutions in one to three spatial axes."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import torch
from torch.nn import functional

from unified_ipu.errors import ConfigError
from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.operators.windows import Window, pad, symmetric
from unified_ipu_onnx.registry import Function, Operator

_FORWARD: Dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: Dict[int, Any] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def conv(node: Node) -> Function:
    """Cross-correlation ``[N, C, ...] * [M, C / group, ...]``."""
    window, group = Window.of(node), node.integer("group", 1)

    def run(
        x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        num_axes = _num_axes(node, x)
        padding = window.padding(x.shape[2:], weight.shape[2:])
        inner = [before for before, _ in padding]
        if not symmetric(padding):
            x, inner = pad(x, padding), [0] * num_axes
        result: torch.Tensor = _FORWARD[num_axes](
            x, weight, bias, window.stride(num_axes), inner, window.dilation(num_axes), group
        )
        return result

    return run


def conv_transpose(node: Node) -> Function:
    """Transposed convolution, the gradient of ``conv``: weight ``[C, M / group, ...]``."""
    window, group = Window.of(node), node.integer("group", 1)
    given, extra = node.integers("output_shape"), node.integers("output_padding")

    def run(
        x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        num_axes = _num_axes(node, x)
        strides, dilations = window.stride(num_axes), window.dilation(num_axes)
        more = list(extra) or [0] * num_axes
        # Torch cuts the same from both ends; ONNX may cut less, or from one end: the full result
        # is made and cut here.
        full: torch.Tensor = _TRANSPOSED[num_axes](x, weight, bias, strides, 0, 0, group, dilations)
        natural = list(full.shape[2:])
        cuts = _cuts(window, natural, more, given, x, strides)
        # A negative cut is room that output_padding adds; only the bias reaches there.
        for axis, (before, after) in enumerate(cuts):
            full = full.narrow(axis + 2, before, full.shape[axis + 2] - before - max(after, 0))
        room = [(0, max(-after, 0)) for _, after in cuts]
        if any(after for _, after in room):
            if bias is not None:
                shape = (1, -1) + (1,) * num_axes
                full = pad(full - bias.reshape(shape), room) + bias.reshape(shape)
            else:
                full = pad(full, room)
        return full

    return run


def _cuts(
    window: Window,
    natural: List[int],
    more: List[int],
    given: List[int],
    x: torch.Tensor,
    strides: List[int],
) -> List[Any]:
    num_axes = len(natural)
    if window.auto_pad in {"SAME_UPPER", "SAME_LOWER"} and not given:
        given = [size * stride for size, stride in zip(x.shape[2:], strides)]
    if not given:
        pads = window.pads or (0,) * (2 * num_axes)
        if window.auto_pad == "VALID":
            pads = (0,) * (2 * num_axes)
        return [(pads[i], pads[num_axes + i] - more[i]) for i in range(num_axes)]
    cuts = []
    for size, wanted, extra in zip(natural, given[-num_axes:], more):
        total = size + extra - wanted
        half = total // 2
        before = total - half if window.auto_pad != "SAME_UPPER" else half
        if total < 0:
            before = 0
        cuts.append((before, total - before - extra))
    return cuts


def _num_axes(node: Node, x: torch.Tensor) -> int:
    num_axes = x.dim() - 2
    if num_axes not in _FORWARD:
        raise ConfigError(
            f"node {node.label!r} ({node.op_type}) was given an input of shape {list(x.shape)}; "
            "expected one to three axes after batch and channel"
        )
    return num_axes


OPERATORS = (
    Operator("Conv", 1, conv),
    Operator("ConvTranspose", 1, conv_transpose),
)

"""Pools over windows and over all spatial axes."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.operators.windows import Window, overhang, pad, symmetric
from unified_ipu_onnx.registry import Function, Operator

Padding = Sequence[Tuple[int, int]]
_MAX: Dict[int, Any] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}
_AVERAGE: Dict[int, Any] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}
_SUM: Dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def max_pool(node: Node) -> Function:
    """Largest element of each window, and where it was if that is asked for."""
    window, kernel = Window.of(node), node.integers("kernel_shape")
    by_columns = bool(node.integer("storage_order"))
    wants_indices = len(node.outputs) > 1

    def run(x: torch.Tensor) -> Any:
        num_axes = len(kernel)
        padding = window.padding(x.shape[2:], kernel)
        strides, dilations = window.stride(num_axes), window.dilation(num_axes)
        own = [before for before, _ in padding]
        padded, ceil_mode, shift = x, window.ceil_mode, [0] * num_axes
        if not x.is_floating_point():
            padded = x.double()  # exact for the 8-bit types that ONNX allows here
        if not _fits_torch(padding, kernel):
            shift, own = own, [0] * num_axes
            extra = overhang(x.shape[2:], kernel, window, padding)
            sides = [(before, after + more) for (before, after), more in zip(padding, extra)]
            padded, ceil_mode = pad(padded, sides, value=float("-inf")), False
        result = _MAX[num_axes](
            padded, kernel, strides, own, dilations, ceil_mode, return_indices=wants_indices
        )
        if not wants_indices:
            return result.to(x.dtype)
        values, places = result
        places = _flat(places, padded.shape[2:], x.shape, shift, by_columns=by_columns)
        return values.to(x.dtype), places

    return run


def _fits_torch(padding: Padding, kernel: Sequence[int]) -> bool:
    return symmetric(padding) and all(
        before <= width // 2 for (before, _), width in zip(padding, kernel)
    )


def _flat(
    places: torch.Tensor,
    padded: Sequence[int],
    shape: Sequence[int],
    shift: Sequence[int],
    *,
    by_columns: bool,
) -> torch.Tensor:
    """Places in one channel of the padded input as places in the whole input."""
    sizes = list(shape[2:])
    coordinates: List[torch.Tensor] = []
    for size, begin in zip(reversed(list(padded)), reversed(list(shift))):
        coordinates.insert(0, places % size - begin)
        places = torch.div(places, size, rounding_mode="floor")
    flat = torch.zeros_like(coordinates[0])
    order = range(len(sizes) - 1, -1, -1) if by_columns else range(len(sizes))
    area = 1
    for axis in order:
        flat = flat * sizes[axis] + coordinates[axis]
        area *= sizes[axis]
    planes = torch.arange(shape[0] * shape[1], device=flat.device)
    return flat + planes.reshape([shape[0], shape[1]] + [1] * len(sizes)) * area


def average_pool(node: Node) -> Function:
    """Mean of each window, over the elements inside the input or over the padding too."""
    window, kernel = Window.of(node), node.integers("kernel_shape")
    counts_padding = bool(node.integer("count_include_pad"))

    def run(x: torch.Tensor) -> torch.Tensor:
        num_axes = len(kernel)
        padding = window.padding(x.shape[2:], kernel)
        if _fits_torch(padding, kernel) and all(d == 1 for d in window.dilation(num_axes)):
            result: torch.Tensor = _AVERAGE[num_axes](
                x,
                kernel,
                window.stride(num_axes),
                [before for before, _ in padding],
                window.ceil_mode,
                counts_padding,
            )
            return result
        inside = torch.ones_like(x[:1, :1])
        if counts_padding:
            inside = pad(inside, padding, value=1.0)
        count = _sums(inside, kernel, window, padding if not counts_padding else None, x)
        return _sums(x, kernel, window, padding, x) / count

    return run


def _sums(
    x: torch.Tensor,
    kernel: Sequence[int],
    window: Window,
    padding: Optional[Padding],
    original: torch.Tensor,
) -> torch.Tensor:
    """Sum of each window; ``x`` is padded by ``padding``, or is already."""
    num_axes = len(kernel)
    sides = window.padding(original.shape[2:], kernel)
    extra = overhang(original.shape[2:], kernel, window, sides)
    before_after = padding if padding is not None else [(0, 0)] * num_axes
    x = pad(x, [(b, a + more) for (b, a), more in zip(before_after, extra)])
    planes = x.reshape(-1, 1, *x.shape[2:])
    ones = torch.ones([1, 1, *kernel], dtype=x.dtype, device=x.device)
    sums = _SUM[num_axes](planes, ones, None, window.stride(num_axes), 0, window.dilation(num_axes))
    return sums.reshape(*x.shape[:2], *sums.shape[2:])  # type: ignore[no-any-return]


def lp_pool(node: Node) -> Function:
    """p-norm of each window."""
    window, kernel, power = Window.of(node), node.integers("kernel_shape"), node.number("p", 2)

    def run(x: torch.Tensor) -> torch.Tensor:
        padding = window.padding(x.shape[2:], kernel)
        return _sums(x.abs() ** power, kernel, window, padding, x) ** (1.0 / power)

    return run


def global_average_pool(node: Node) -> Function:
    """Mean over all spatial axes, which stay with size 1."""
    del node
    return lambda x: x.mean(list(range(2, x.dim())), keepdim=True)


def global_max_pool(node: Node) -> Function:
    """Maximum over all spatial axes, which stay with size 1."""
    del node
    return lambda x: x.amax(list(range(2, x.dim())), keepdim=True)


def global_lp_pool(node: Node) -> Function:
    """p-norm over all spatial axes, which stay with size 1."""
    power = node.number("p", 2)
    return lambda x: (x.abs() ** power).sum(list(range(2, x.dim())), keepdim=True) ** (1 / power)


OPERATORS = (
    Operator("AveragePool", 1, average_pool),
    Operator("GlobalAveragePool", 1, global_average_pool),
    Operator("GlobalLpPool", 1, global_lp_pool),
    Operator("GlobalMaxPool", 1, global_max_pool),
    Operator("LpPool", 1, lp_pool),
    Operator("MaxPool", 1, max_pool),
)

"""Which elements of an axis a resized one is made of, and with what weights; on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

Array = Any  # numpy, float64 unless indices


@dataclass(frozen=True)
class Axis:
    """One axis to resize.

    Attributes:
        size: Elements that it has.
        scale: Factor between coordinates; ``wanted / size`` unless the file says otherwise.
        wanted: Elements that it gets.
        region: Start and end that is cropped, as shares of the axis.
    """

    size: int
    scale: float
    wanted: int
    region: Tuple[float, float] = (0.0, 1.0)

    @property
    def is_kept(self) -> bool:
        """Whether nothing happens to it."""
        return self.size == self.wanted and self.scale == 1.0 and self.region == (0.0, 1.0)


@dataclass(frozen=True)
class Taps:
    """Elements to add up.

    Attributes:
        indices: Of the old axis, shape ``[wanted, taps]``.
        weights: Of the same shape.
        outside: Whether a new element lies outside the old axis, shape ``[wanted]``; None where
            that means nothing.
    """

    indices: Array
    weights: Array
    outside: Optional[Array]


def coordinates(axis: Axis, transformation: str) -> Array:
    """Where the new elements lie on the old axis, in elements.

    Args:
        axis: Which one.
        transformation: ``coordinate_transformation_mode`` of ``Resize``.

    Raises:
        ValueError: If there is no such transformation.

    Source: the definition of Resize in operator set 19 of ONNX.
    """
    new = np.arange(axis.wanted, dtype=np.float64)
    length = axis.scale * axis.size
    if transformation == "asymmetric":
        return new / axis.scale
    if transformation == "align_corners":
        return new * (axis.size - 1) / (length - 1) if length != 1 else new * 0.0
    if transformation == "tf_crop_and_resize":
        start, end = axis.region
        span = (end - start) * (axis.size - 1)
        inner = new * span / (length - 1) if length != 1 else new * 0.0 + span / 2
        return inner + start * (axis.size - 1)
    half = (new + 0.5) / axis.scale - 0.5
    if transformation == "half_pixel":
        return half
    if transformation == "pytorch_half_pixel":
        return half if length > 1 else new * 0.0
    if transformation == "half_pixel_symmetric":
        return half + axis.size / 2 * (1 - axis.wanted / length)
    raise ValueError(transformation)


_ROUNDED: Dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def nearest(axis: Axis, transformation: str, rounding: str) -> Taps:
    """One element each.

    Args:
        axis: Which one.
        transformation: As ``coordinates`` takes it.
        rounding: ``nearest_mode`` of ``Resize``.

    Raises:
        ValueError: If a mode does not exist.
    """
    if rounding not in _ROUNDED:
        raise ValueError(rounding)
    place = coordinates(axis, transformation)
    chosen = np.clip(_ROUNDED[rounding](place), 0, axis.size - 1).astype(np.int64)
    return Taps(chosen[:, None], np.ones((axis.wanted, 1)), _outside(axis, place, transformation))


def linear(x: Array) -> Array:
    """Triangle of radius 1."""
    return np.maximum(0.0, 1.0 - np.abs(x))


def cubic(coefficient: float) -> Callable[[Array], Array]:
    """Cubic convolution of radius 2.

    Source: R. G. Keys, Cubic convolution interpolation for digital image processing, 1981.
    """

    def kernel(x: Array) -> Array:
        a, x = coefficient, np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    return kernel


def smooth(
    axis: Axis,
    transformation: str,
    kernel: Callable[[Array], Array],
    radius: int,
    *,
    antialias: bool,
    excludes_outside: bool,
) -> Taps:
    """Elements around each place, weighted by a kernel.

    Args:
        axis: Which one.
        transformation: As ``coordinates`` takes it.
        kernel: Of the distance, in elements.
        radius: Beyond which the kernel is 0.
        antialias: Whether the kernel grows when the axis shrinks.
        excludes_outside: Whether elements beyond the ends weigh nothing; else the ends are
            repeated.

    Raises:
        ValueError: If the transformation does not exist.
    """
    place = coordinates(axis, transformation)
    stretch = min(axis.scale, 1.0) if antialias else 1.0
    reach = math.ceil(radius / stretch)
    indices = np.floor(place).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    weights = kernel((indices - place[:, None]) * stretch)
    if antialias:
        weights = weights / weights.sum(1, keepdims=True)
    if excludes_outside:
        weights = np.where((indices >= 0) & (indices < axis.size), weights, 0.0)
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    clipped = np.clip(indices, 0, axis.size - 1)
    return Taps(clipped, weights, _outside(axis, place, transformation))


def _outside(axis: Axis, place: Array, transformation: str) -> Optional[Array]:
    if transformation != "tf_crop_and_resize":
        return None
    outside = (place < 0) | (place > axis.size - 1)
    return outside if outside.any() else None


def axes_to_resize(
    shape: Sequence[int],
    axes: Sequence[int],
    *,
    scales: Sequence[float] = (),
    sizes: Sequence[int] = (),
    region: Sequence[float] = (),
    policy: str = "stretch",
) -> Tuple[Axis, ...]:
    """What happens to each of the axes.

    Args:
        shape: Of the tensor.
        axes: To resize, not negative.
        scales: One each, or
        sizes: One each.
        region: Starts of all, then ends of all.
        policy: ``keep_aspect_ratio_policy`` of ``Resize``; only for ``sizes``.
    """
    count = len(axes)
    regions = list(zip(region[:count], region[count:])) or [(0.0, 1.0)] * count
    old = [shape[axis] for axis in axes]
    if len(sizes):
        scales = [wanted / size for wanted, size in zip(sizes, old)]
        wanteds = list(sizes)
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales = [scale] * count
            wanteds = [int(scale * size + 0.5) for size in old]
    else:
        wanteds = [int(scale * size) for scale, size in zip(scales, old)]
    return tuple(Axis(*facts) for facts in zip(old, scales, wanteds, regions))

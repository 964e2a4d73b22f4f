"""Resizing of axes, by the nearest element or smoothly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.operators.interpolation import (
    Axis,
    Taps,
    axes_to_resize,
    cubic,
    linear,
    nearest,
    smooth,
)
from unified_ipu_onnx.registry import Function, Operator

_CACHED = 64  # shapes and axes of a node whose taps are kept


@dataclass(frozen=True)
class _Settings:
    """Attributes of a node, with the defaults of its operator set."""

    mode: str
    transformation: str
    rounding: str
    coefficient: float
    antialias: bool
    excludes_outside: bool
    extrapolation: float

    def taps(self, axis: Axis) -> Taps:
        if self.mode == "nearest":
            return nearest(axis, self.transformation, self.rounding)
        is_cubic = self.mode == "cubic"
        return smooth(
            axis,
            self.transformation,
            cubic(self.coefficient) if is_cubic else linear,
            2 if is_cubic else 1,
            antialias=self.antialias,
            excludes_outside=self.excludes_outside,
        )


def resize(node: Node) -> Function:
    """By scales or to sizes; inputs ``roi``, ``scales`` and ``sizes``."""
    settings = _settings(node, transformation="half_pixel", rounding="round_prefer_floor")
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    apply = _Resizer(settings)
    chosen = node.integers("axes")

    def run(
        x: torch.Tensor,
        region: Optional[Sequence[float]] = None,
        scales: Optional[Sequence[float]] = None,
        sizes: Optional[Sequence[int]] = None,
    ) -> torch.Tensor:
        axes = [axis % x.dim() for axis in chosen] or list(range(x.dim()))
        cropped = settings.transformation == "tf_crop_and_resize"
        facts = axes_to_resize(
            x.shape,
            axes,
            scales=scales or (),
            sizes=sizes or (),
            region=(region or ()) if cropped else (),
            policy=policy,
        )
        return apply(x, axes, facts)

    return run


def resize_by_scales(node: Node) -> Function:
    """By scales, counted from the first element; ``Resize`` 10 and ``Upsample`` 9."""
    settings = _settings(node, transformation="asymmetric", rounding="floor")
    apply = _Resizer(settings)

    def run(x: torch.Tensor, scales: Sequence[float]) -> torch.Tensor:
        axes = list(range(x.dim()))
        return apply(x, axes, axes_to_resize(x.shape, axes, scales=scales))

    return run


def upsample(node: Node) -> Function:
    """By scales of the attributes; before operator set 9."""
    scales = node.numbers("scales")
    if node.has("height_scale"):  # operator set 1, for pictures only
        scales = [1.0, 1.0, node.number("height_scale"), node.number("width_scale")]
    function = resize_by_scales(node)
    return lambda x: function(x, scales)


def _settings(node: Node, *, transformation: str, rounding: str) -> _Settings:
    mode = node.text("mode", "nearest")
    settings = _Settings(
        mode={"bilinear": "linear"}.get(mode, mode),
        transformation=node.text("coordinate_transformation_mode", transformation),
        rounding=node.text("nearest_mode", rounding),
        coefficient=node.number("cubic_coeff_a", -0.75),
        antialias=bool(node.integer("antialias")),
        excludes_outside=bool(node.integer("exclude_outside")),
        extrapolation=node.number("extrapolation_value"),
    )
    if settings.mode not in {"nearest", "linear", "cubic"}:
        raise node.refuse(f"mode {mode!r} is none of nearest, linear and cubic")
    try:
        settings.taps(Axis(2, 1.0, 2))
    except ValueError as error:
        raise node.refuse(f"there is no mode {error} of Resize") from error
    return settings


class _Resizer:
    """Carries out what was decided, by torch's own kernels where they mean the same."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        # Taps, not tensors: the module may also run on tensors without data, for their shapes.
        self._taps = lru_cache(maxsize=_CACHED)(settings.taps)

    def __call__(self, x: torch.Tensor, axes: List[int], facts: Sequence[Axis]) -> torch.Tensor:
        changed = [(axis, fact) for axis, fact in zip(axes, facts) if not fact.is_kept]
        native = _native(self._settings, x, changed)
        if native is not None:
            sizes = list(x.shape[2:])
            for axis, fact in changed:
                sizes[axis - 2] = fact.wanted
            corners = self._settings.transformation == "align_corners"
            resized: torch.Tensor = functional.interpolate(
                x, sizes, mode=native, align_corners=None if native == "nearest" else corners
            )
            return resized
        kept = x.dtype
        if not x.is_floating_point() and self._settings.mode != "nearest":
            x = x.to(torch.float32)
        for axis, fact in changed:
            x = self._along(x, axis, self._taps(fact))
        return x.to(kept)

    def _along(self, x: torch.Tensor, axis: int, taps: Taps) -> torch.Tensor:
        shape = [1] * x.dim()
        shape[axis] = len(taps.indices)
        indices = torch.from_numpy(taps.indices).to(x.device).unbind(1)
        result = x.index_select(axis, indices[0])
        if self._settings.mode != "nearest":
            weights = torch.from_numpy(taps.weights).to(x.device, x.dtype).unbind(1)
            result = result * weights[0].reshape(shape)
            # One after the other: gathering all taps at once takes several times the memory.
            for index, weight in zip(indices[1:], weights[1:]):
                result = result + x.index_select(axis, index) * weight.reshape(shape)
        if taps.outside is not None:
            outside = torch.from_numpy(taps.outside).to(x.device).reshape(shape)
            result = result.masked_fill(outside, self._settings.extrapolation)
        return result


def _native(
    settings: _Settings, x: torch.Tensor, changed: Sequence[Tuple[int, Axis]]
) -> Optional[str]:
    """Mode of torch that gives the same, or None."""
    exact = all(
        axis > 1 and fact.wanted > 1 and abs(fact.scale * fact.size - fact.wanted) < 1e-6
        for axis, fact in changed
    )
    if not (exact and changed and 3 <= x.dim() <= 5 and x.is_floating_point()):
        return None
    if settings.antialias or settings.excludes_outside:
        return None
    half = settings.transformation in {"half_pixel", "pytorch_half_pixel"}
    if settings.mode == "nearest":
        whole = all(fact.wanted % fact.size == 0 for _, fact in changed)
        first = settings.transformation == "asymmetric" and settings.rounding == "floor"
        middle = half and settings.rounding.startswith("round")
        return "nearest" if whole and (first or middle) else None
    if not half and settings.transformation != "align_corners":
        return None
    if settings.mode == "cubic":
        return "bicubic" if x.dim() == 4 and settings.coefficient == -0.75 else None
    return {3: "linear", 4: "bilinear", 5: "trilinear"}[x.dim()]


OPERATORS = (
    Operator("Resize", 10, resize_by_scales, ints=(1,)),
    Operator("Resize", 11, resize, ints=(1, 2, 3)),
    Operator("Upsample", 1, upsample),
    Operator("Upsample", 9, resize_by_scales, ints=(1,)),
)

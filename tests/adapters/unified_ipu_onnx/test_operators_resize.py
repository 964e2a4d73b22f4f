"""Resizing in every mode, against onnxruntime; also where torch's own kernels do the work."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch
from onnx import helper

from tests.adapters.unified_ipu_onnx.finite_differences import runtime_of
from tests.adapters.unified_ipu_onnx.graphs import model, value
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.module import GraphModule

TRANSFORMATIONS = [
    "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric",
]  # fmt: skip
ROUNDINGS = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
# Height and width of a picture of 6 by 4.
SIZES: List[Tuple[int, int]] = [(12, 8), (9, 5), (3, 2), (6, 7), (1, 4)]


def resized(settings: Dict[str, Any], sizes: Tuple[int, int], opset: int = 19) -> Any:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], name="resize", **settings)
    held = {"sizes": np.array([2, 3, *sizes], np.int64)}
    inputs, outputs = [value("x", [2, 3, 6, 4])], [value("y", [2, 3, *sizes])]
    return model([node], inputs, outputs, held, opset)


def picture() -> Any:
    return np.random.default_rng(5).standard_normal((2, 3, 6, 4)).astype(np.float32)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_the_nearest_element_is_that_of_onnxruntime(
    transformation: str, sizes: Tuple[int, int]
) -> None:
    for rounding in ROUNDINGS:
        settings = {"mode": "nearest", "nearest_mode": rounding}
        proto = resized({**settings, "coordinate_transformation_mode": transformation}, sizes)
        ours = GraphModule.from_model(proto)(torch.from_numpy(picture()))
        np.testing.assert_array_equal(ours.numpy(), runtime_of(proto)({"x": picture()})[0])


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_smooth_modes_are_those_of_onnxruntime(
    mode: str, transformation: str, sizes: Tuple[int, int]
) -> None:
    for extra in SMOOTH[mode]:
        settings = {"mode": mode, "coordinate_transformation_mode": transformation, **extra}
        proto = resized(settings, sizes)
        ours = GraphModule.from_model(proto)(torch.from_numpy(picture()))
        theirs = runtime_of(proto)({"x": picture()})[0]
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-5, err_msg=str(extra))


SMOOTH: Dict[str, List[Dict[str, Any]]] = {
    "linear": [{}, {"antialias": 1}],
    "cubic": [{}, {"cubic_coeff_a": -0.5}, {"exclude_outside": 1}, {"antialias": 1}],
}


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_torchs_kernels_and_ours_give_one_gradient(mode: str) -> None:
    """A whole factor goes to torch's kernel; the same by elements when an axis more is listed."""
    x = torch.from_numpy(picture()).double()
    settings = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    native = GraphModule.from_model(resized(settings, (12, 8)))
    flat = GraphModule.from_model(_over_channels(settings))
    cotangent = torch.from_numpy(np.random.default_rng(6).standard_normal((2, 3, 12, 8)))
    found = []
    for module, view in ((native, x), (flat, x.permute(0, 2, 3, 1))):
        given = view.detach().clone().requires_grad_()
        result = module(given)
        result = result if module is native else result.permute(0, 3, 1, 2)
        (gradient,) = torch.autograd.grad((result * cotangent).sum(), given)
        found.append(gradient if module is native else gradient.permute(0, 3, 1, 2))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def _over_channels(settings: Dict[str, Any]) -> Any:
    """The same picture with channels last: axis 1 is resized, which torch's kernels do not."""
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], name="resize", **settings)
    held = {"sizes": np.array([2, 12, 8, 3], np.int64)}
    return model([node], [value("x", [2, 6, 4, 3])], [value("y", [2, 12, 8, 3])], held, opset=19)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "area"}, "mode 'area' is none of nearest, linear and cubic"),
        ({"mode": "nearest", "nearest_mode": "up"}, "there is no mode up of Resize"),
        ({"coordinate_transformation_mode": "x"}, "there is no mode x of Resize"),
    ],
)
def test_modes_that_do_not_exist_are_refused(settings: Dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GraphModule.from_model(resized(settings, (12, 8)))

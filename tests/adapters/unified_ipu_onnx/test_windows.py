"""Convolutions and pools over every kind of window, against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any, Dict

import numpy as np
import onnxruntime
import pytest
import torch

from tests.adapters.unified_ipu_onnx.written_graphs import held, info, model, node
from unified_ipu_onnx.module import GraphModule

RNG = np.random.default_rng(0)


def ours_and_theirs(made, *arrays):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # starting threads costs more than these graphs
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = dict(zip((value.name for value in session.get_inputs()), arrays))
    expected = session.run(None, feeds)
    with torch.no_grad():
        found = GraphModule.from_model(made).eval()(*map(torch.from_numpy, arrays))
    found = list(found.values()) if isinstance(found, dict) else [found]
    return [value.numpy() for value in found], expected


def check(made, *arrays, rtol=1e-4):
    found, expected = ours_and_theirs(made, *arrays)
    for ours, theirs in zip(found, expected):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-5)


PADDINGS: Dict[str, Dict[str, Any]] = {
    "none": {},
    "even": {"pads": [1, 1, 1, 1]},
    "uneven": {"pads": [0, 1, 1, 0]},
    "upper": {"auto_pad": "SAME_UPPER"},
    "lower": {"auto_pad": "SAME_LOWER"},
    "valid": {"auto_pad": "VALID"},
}


# onnxruntime refuses automatic padding of dilated windows in convolutions, and forgets the
# dilation in pools.
WINDOWS = [
    (padding, strides, dilations)
    for padding in PADDINGS
    for strides, dilations in (([1, 1], [1, 1]), ([2, 3], [1, 1]), ([1, 2], [2, 1]))
    if dilations == [1, 1] or padding not in {"upper", "lower"}
]


@pytest.mark.parametrize(("padding", "strides", "dilations"), WINDOWS)
def test_convolutions(padding, strides, dilations):
    for kernel, group in itertools.product(([3, 3], [2, 4]), (1, 2)):
        weight = RNG.standard_normal((4, 4 // group, *kernel)).astype(np.float32)
        settings = {**PADDINGS[padding], "strides": strides, "dilations": dilations}
        made = model(
            [node("Conv", ["x", "w", "b"], ["y"], group=group, **settings)],
            [info("x", [1, 4, 9, 8])], [info("y", None)], held(w=weight, b=[1.0, 2.0, 3.0, 4.0]),
        )  # fmt: skip
        check(made, RNG.standard_normal((1, 4, 9, 8)).astype(np.float32))


@pytest.mark.parametrize("num_axes", [1, 3])
def test_convolutions_in_other_numbers_of_axes(num_axes):
    weight = RNG.standard_normal((2, 3, *[3] * num_axes)).astype(np.float32)
    settings: Dict[str, Any] = {"pads": [1] * num_axes + [2] * num_axes}
    settings["strides"] = [2] * num_axes
    made = model(
        [node("Conv", ["x", "w"], ["y"], **settings)],
        [info("x", [2, 3, *[5] * num_axes])], [info("y", None)], held(w=weight),
    )  # fmt: skip
    check(made, RNG.standard_normal((2, 3, *[5] * num_axes)).astype(np.float32))


TRANSPOSED = [
    {},
    {"strides": [2, 2]},
    {"strides": [3, 2], "pads": [1, 0, 1, 1]},
    {"strides": [2, 2], "output_padding": [1, 1]},
    {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 1, 1, 1]},
    {"strides": [2, 2], "output_shape": [8, 7]},
    {"strides": [2, 2], "output_shape": [10, 9], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"dilations": [2, 2]},
]


@pytest.mark.parametrize("settings", TRANSPOSED, ids=str)
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolutions(settings, group):
    weight = RNG.standard_normal((4, 4 // group, 3, 3)).astype(np.float32)
    made = model(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], group=group, **settings)],
        [info("x", [1, 4, 4, 4])], [info("y", None)], held(w=weight, b=[1.0, 2.0, 3.0, 4.0]),
    )  # fmt: skip
    check(made, RNG.standard_normal((1, 4, 4, 4)).astype(np.float32))


@pytest.mark.parametrize(("padding", "strides", "dilations"), WINDOWS)
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_maximum_pools_and_where_the_maximum_was(padding, strides, dilations, ceil_mode):
    for kernel, order in (([3, 3], 0), ([2, 4], 1)):
        settings = {**PADDINGS[padding], "strides": strides, "dilations": dilations}
        settings.update(ceil_mode=ceil_mode, storage_order=order, kernel_shape=kernel)
        made = model(
            [node("MaxPool", ["x"], ["y", "i"], **settings)],
            [info("x", [2, 3, 9, 8])], [info("y", None), info("i", None, 7)],
        )  # fmt: skip
        check(made, RNG.standard_normal((2, 3, 9, 8)).astype(np.float32))


@pytest.mark.parametrize(("padding", "strides", "dilations"), WINDOWS)
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_average_pools(padding, strides, dilations, ceil_mode):
    for kernel, counts in (([3, 3], 0), ([2, 4], 1), ([2, 3], 0), ([3, 4], 1)):
        settings = {**PADDINGS[padding], "strides": strides, "kernel_shape": kernel}
        settings.update(ceil_mode=ceil_mode, count_include_pad=counts, dilations=dilations)
        made = model(
            [node("AveragePool", ["x"], ["y"], **settings)],
            [info("x", [2, 3, 9, 8])], [info("y", None)], opset=19,
        )  # fmt: skip
        check(made, RNG.standard_normal((2, 3, 9, 8)).astype(np.float32))


@pytest.mark.parametrize("num_axes", [1, 3])
def test_pools_in_other_numbers_of_axes(num_axes):
    settings: Dict[str, Any] = {"kernel_shape": [3] * num_axes}
    settings["pads"] = [1] * num_axes + [0] * num_axes
    x = RNG.standard_normal((2, 3, *[6] * num_axes)).astype(np.float32)
    for kind in ("MaxPool", "AveragePool", "LpPool"):
        made = model(
            [node(kind, ["x"], ["y"], strides=[2] * num_axes, **settings)],
            [info("x", list(x.shape))], [info("y", None)],
        )  # fmt: skip
        check(made, x)


def test_pools_over_everything():
    x = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    for kind in ("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"):
        made = model([node(kind, ["x"], ["y"])], [info("x", [2, 3, 4, 5])], [info("y", None)])
        check(made, x)


def test_a_maximum_pool_of_bytes_is_one_of_bytes():
    x = RNG.integers(0, 256, (1, 1, 5, 5)).astype(np.uint8)
    made = model(
        [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 0, 0])],
        [info("x", [1, 1, 5, 5], 2)], [info("y", None, 2)],
    )  # fmt: skip
    check(made, x)


def test_the_gradient_of_a_pool_in_its_general_form_is_that_of_its_windows():
    made = model(
        [node("Mul", ["x", "w"], ["h"]),
         node("AveragePool", ["h"], ["y"], kernel_shape=[2, 2], pads=[0, 0, 1, 1])],
        [info("x", [1, 1, 2, 2])], [info("y", None)], held(w=np.ones((1, 1, 2, 2), np.float32)),
    )  # fmt: skip
    module = GraphModule.from_model(made)
    module(torch.ones(1, 1, 2, 2)).sum().backward()
    # Windows of 4, 2, 2 and 1 elements inside: each gives its elements an equal share.
    (weight,) = module.parameters()
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == [0.25, 0.75, 0.75, 2.25]

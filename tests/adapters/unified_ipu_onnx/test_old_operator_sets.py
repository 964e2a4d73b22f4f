"""Meanings that operators had once: files of those days mean them still."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.adapters.unified_ipu_onnx.written_graphs import branch, held, info, model, node
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.module import GraphModule

GRID = torch.arange(6.0).reshape(1, 2, 3)


def run(nodes, *inputs, opset, **arrays):
    names = [f"x{index}" for index in range(len(inputs))]
    made = model(
        nodes, [info(n, list(x.shape)) for n, x in zip(names, inputs)], [info("y", None)],
        held(**arrays), opset=opset, ir_version=3,
    )  # fmt: skip
    with torch.no_grad():
        return GraphModule.from_model(made).eval()(*inputs).tolist()


def test_arithmetic_is_broadcast_from_an_axis_before_set_7():
    added = run(
        [node("Add", ["x0", "b"], ["y"], broadcast=1, axis=1)], GRID, opset=6, b=[10.0, 20.0]
    )
    assert added == [[[10.0, 11.0, 12.0], [23.0, 24.0, 25.0]]]
    trailing = run([node("Mul", ["x0", "b"], ["y"], broadcast=1)], GRID, opset=6, b=[0.0, 1.0, 2.0])
    assert trailing == [[[0.0, 1.0, 4.0], [0.0, 4.0, 10.0]]]


def test_the_softmax_of_all_later_axes_together_before_set_13():
    node_ = [node("Softmax", ["x0"], ["y"])]
    old = np.array(run(node_, GRID, opset=12))
    e = np.exp(np.arange(6.0))
    assert np.allclose(old.ravel(), e / e.sum())
    new = np.array(run(node_, GRID, opset=13))
    assert np.allclose(new.ravel(), (e / np.repeat([e[:3].sum(), e[3:].sum()], 3)))


def test_the_hardmax_of_all_later_axes_together_before_set_13():
    assert run([node("Hardmax", ["x0"], ["y"])], GRID, opset=11) == [[[0, 0, 0], [0, 0, 1]]]
    assert run([node("Hardmax", ["x0"], ["y"])], GRID, opset=13) == [[[0, 0, 1], [0, 0, 1]]]


def test_bounds_shapes_and_pads_are_attributes():
    assert run([node("Clip", ["x0"], ["y"], max=2.0)], GRID, opset=6) == [[[0, 1, 2], [2, 2, 2]]]
    assert run([node("Reshape", ["x0"], ["y"], shape=[0, -1])], GRID, opset=1) == [
        [0, 1, 2, 3, 4, 5]
    ]
    pads = [0, 0, 1, 0, 0, -1]
    assert run([node("Pad", ["x0"], ["y"], pads=pads, value=9.0)], GRID, opset=2) == [
        [[9, 0, 1], [9, 3, 4]]
    ]
    assert run([node("Pad", ["x0"], ["y"], paddings=pads)], GRID, opset=1) == [
        [[0, 0, 1], [0, 3, 4]]
    ]
    assert run([node("Slice", ["x0"], ["y"], starts=[-2], ends=[99], axes=[2])], GRID, opset=1) == [
        [[1, 2], [4, 5]]
    ]


def test_parts_are_sized_by_an_attribute_or_an_input():
    glue = node("Concat", ["b", "a"], ["y"], axis=2)
    swapped = [[[2, 0, 1], [5, 3, 4]]]
    cut = node("Split", ["x0"], ["a", "b"], axis=2, split=[2, 1])
    assert run([cut, glue], GRID, opset=2) == swapped
    cut = node("Split", ["x0", "s"], ["a", "b"], axis=2)
    assert run([cut, glue], GRID, opset=13, s=np.array([2, 1])) == swapped
    cut = node("Split", ["x0"], ["a", "b"], axis=2, num_outputs=2)
    assert run([cut, glue], GRID, opset=18) == swapped


def test_tiles_are_a_number_and_an_axis_before_set_6():
    once = GRID[:, :1]
    tiled = [[[0, 1, 2, 0, 1, 2]]]
    old = [node("Tile", ["x0", "n", "a"], ["y"])]
    assert run(old, once, opset=1, n=[2.0], a=[2.0]) == tiled
    assert run([node("Tile", ["x0", "n"], ["y"])], once, opset=6, n=np.array([1, 1, 2])) == tiled


def test_joining_starts_at_axis_1_before_set_4():
    assert run([node("Concat", ["x0", "x1"], ["y"])], GRID, GRID, opset=1) == [
        [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]
    ]


def test_a_type_is_spelled_out_before_set_6():
    cast = [node("Cast", ["x0"], ["h"], to="BOOL"), node("Cast", ["h"], ["y"], to="FLOAT")]
    assert run(cast, GRID, opset=5) == [[[0, 1, 1], [1, 1, 1]]]


def test_the_slope_of_a_channel_before_set_7():
    x = torch.full((1, 2, 2), -1.0)
    assert run([node("PRelu", ["x0", "s"], ["y"])], x, opset=6, s=[2.0, 3.0]) == [
        [[-2, -2], [-3, -3]]
    ]


def test_numbers_of_selu_were_shorter_before_set_6():
    found = run([node("Selu", ["x0"], ["y"])], torch.tensor([[1.0]]), opset=1)
    assert found[0][0] == pytest.approx(1.0507, abs=1e-7)
    found = run([node("Selu", ["x0"], ["y"])], torch.tensor([[1.0]]), opset=6)
    assert found[0][0] == pytest.approx(1.05070102, abs=1e-7)


@pytest.mark.parametrize(("opset", "kind"), [(9, torch.float32), (12, torch.bool)])
def test_the_mask_of_dropout_had_the_type_of_its_input_before_set_10(opset, kind):
    made = model([node("Dropout", ["x"], ["y", "mask"])], ["x"], ["y", info("mask")], opset=opset)
    assert GraphModule.from_model(made).eval()(torch.ones(1, 2))["mask"].dtype == kind
    masks = GraphModule.from_model(made).train()(torch.ones(50, 2))
    assert masks["mask"].dtype == kind
    assert torch.equal(masks["y"], 2.0 * masks["mask"])
    assert 0 < masks["mask"].sum() < 100


def test_a_scan_of_set_8_runs_over_each_sample():
    body = branch(
        [node("Add", ["s", "v"], ["t"]), node("Identity", ["t"], ["o"])],
        [info("t", [2]), info("o", [2])], [info("s", [2]), info("v", [2])],
    )  # fmt: skip
    scan = [node("Scan", ["", "x0", "x1"], ["last", "y"], body=body, num_scan_inputs=1)]
    states, x = torch.zeros(2, 2), torch.arange(12.0).reshape(2, 3, 2)
    assert run(scan, states, x, opset=8) == x.cumsum(1).tolist()
    scan[0].input[0] = "x2"
    with pytest.raises(ConfigError, match="sequence_lens are not supported"):
        run(scan, states, x, torch.tensor([3.0, 3.0]), opset=8)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_move_between_channels_and_space_with_their_gradient(mode):
    nodes = [
        node("Mul", ["x", "w"], ["h"]),
        node("DepthToSpace", ["h"], ["y"], blocksize=2, mode=mode),
    ]
    made = model(nodes, [info("x", [1, 8, 1, 1])], [info("y", None)], held(w=[1.0]), opset=13)
    module = GraphModule.from_model(made)
    y = module(torch.arange(8.0).reshape(1, 8, 1, 1))
    expected = {
        "DCR": [[[0, 2], [4, 6]], [[1, 3], [5, 7]]],
        "CRD": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
    }
    assert y.tolist() == [expected[mode]]
    y.sum().backward()
    (weight,) = module.parameters()
    assert weight.grad is not None
    assert weight.grad.tolist() == [28.0]
    if mode == "DCR":  # the only one SpaceToDepth had before set 28
        back = model(
            [node("SpaceToDepth", ["y"], ["x"], blocksize=2)],
            [info("y", [1, 2, 2, 2])], [info("x", None)],
        )  # fmt: skip
        found = GraphModule.from_model(back)(y.detach())
        assert found.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]

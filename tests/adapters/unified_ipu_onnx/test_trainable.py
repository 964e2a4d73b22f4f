"""Which tensors of a graph are trained, and what is told of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.adapters.unified_ipu_onnx.written_graphs import (
    branch,
    checked,
    gradients,
    held,
    info,
    model,
    node,
)
from unified_ipu.errors import ConfigError
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.trainable import uses_of
from unified_ipu_onnx.values import put_values

W = [[1.0, 2.0], [3.0, 4.0]]
X = torch.tensor([[1.0, 1.0]])


def trained(module):
    return sorted(module.initializer_names[name] for name, _ in module.named_parameters())


@pytest.mark.case("O-X1")
@pytest.mark.parametrize(
    ("multiply", "weight"),
    [
        (node("MatMul", ["x", "lin.w"], ["y"]), W),
        (node("Gemm", ["x", "lin.w"], ["y"]), W),
        (node("Gemm", ["x", "lin.w"], ["y"], transB=1), [[1.0, 3.0], [2.0, 4.0]]),
    ],
    ids=["MatMul", "Gemm", "Gemm transposed"],
)
def test_a_weight_is_trained_and_saved_under_its_name(multiply, weight):
    given = checked(model([multiply], ["x"], ["y"], held(**{"lin.w": weight})))
    module = GraphModule.from_model(given)
    assert trained(module) == ["lin.w"]
    assert module(X).tolist() == [[4.0, 6.0]]
    module(X).sum().backward()
    assert gradients(module) == {"lin%2Ew": [[1.0, 1.0], [1.0, 1.0]]}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(0.1)
    put_values(given, {n: module.get_parameter(t) for t, n in module.initializer_names.items()})
    (saved,) = given.graph.initializer
    assert saved.name == "lin.w"
    assert np.allclose(numpy_helper.to_array(saved), np.array(weight) - 0.1)


@pytest.mark.case("O-X1")
def test_a_weight_in_a_constant_node_is_reported_as_frozen():
    constant = node("Constant", [], ["w"], value=numpy_helper.from_array(np.array(W, np.float32)))
    module = GraphModule.from_model(
        checked(model([constant, node("MatMul", ["x", "w"], ["y"])], ["x"], ["y"]))
    )
    assert list(module.parameters()) == []
    assert module.frozen == ("w",)
    assert module(X).tolist() == [[4.0, 6.0]]


@pytest.mark.case("O-X2")
def test_a_weight_that_is_used_twice_is_one_parameter():
    given = model(
        [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])],
        ["x"], ["y"], held(w=W),
    )  # fmt: skip
    module = GraphModule.from_model(checked(given))
    y = module(X)
    y.sum().backward()
    assert y.tolist() == [[22.0, 32.0]]
    assert gradients(module) == {"w": [[7.0, 11.0], [9.0, 13.0]]}
    put_values(given, {"w": module.get_parameter("w")})
    assert [tensor.name for tensor in given.graph.initializer] == ["w"]


@pytest.mark.case("O-X2")
def test_a_weight_behind_an_identity_is_still_one_parameter():
    given = model(
        [
            node("Identity", ["w"], ["v"]),
            node("MatMul", ["x", "w"], ["h"]),
            node("MatMul", ["h", "v"], ["y"]),
        ],
        ["x"], ["y"], held(w=W),
    )  # fmt: skip
    module = GraphModule.from_model(given)
    module(X).sum().backward()
    assert gradients(module) == {"w": [[7.0, 11.0], [9.0, 13.0]]}


def test_numbers_that_operators_have_no_gradient_for_are_no_weights():
    given = model(
        [
            node("Clip", ["x", "low", "high"], ["c"]),
            node("Reshape", ["c", "shape"], ["r"]),
            node("SoftmaxCrossEntropyLoss", ["r", "t", "class_weight"], ["loss"]),
        ],
        ["x", info("t", [1], TensorProto.INT64)],
        [info("loss")],
        held(low=0.0, high=1.0, class_weight=[1.0, 3.0], shape=np.array([-1, 2])),
    )
    assert uses_of(checked(given)).weights == set()


def test_a_weight_inside_branches_and_functions_is_found():
    f = helper.make_function(
        "mine", "F", ["a", "b"], ["c"], [node("MatMul", ["a", "b"], ["c"])],
        [helper.make_opsetid("", 13)],
    )  # fmt: skip
    then = helper.make_graph(
        [node("F", ["x", "w"], ["p"], domain="mine")], "then", [], [info("p", ["N", "M"])]
    )
    other = branch([node("Add", ["x", "v"], ["q"])], ["q"])
    given = model(
        [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        ["x", info("flag", [], TensorProto.BOOL)], ["y"],
        held(w=W, v=[1.0, 1.0], unread=[1.0]), domains=["mine"], functions=[f],
    )  # fmt: skip
    assert uses_of(checked(given)).weights == {"w", "v"}


def test_what_is_only_compared_on_its_way_is_no_weight():
    nodes = [
        node("Slice", ["mask", "zero", "two"], ["m"]),
        node("Equal", ["m", "nought"], ["hidden"]),
        node("Where", ["hidden", "x", "w"], ["y"]),
    ]
    given = model(
        nodes, ["x"], ["y"],
        held(mask=[1.0, 0.0, 1.0], nought=0.0, w=[5.0], zero=np.array([0]), two=np.array([2])),
    )  # fmt: skip
    module = GraphModule.from_model(checked(given))
    assert trained(module) == ["w"]
    assert module.state_dict().keys() == {"w"}
    assert module(X).tolist() == [[5.0, 1.0]]


def test_a_gradient_passes_on_where_the_standard_has_no_weights():
    # A spatial transformer: what says where to sample was computed, and is learned.
    nodes = [
        node("Gemm", ["x", "w"], ["t"]),
        node("Reshape", ["t", "two_by_three"], ["theta"]),
        node("AffineGrid", ["theta", "size"], ["grid"]),
        node("GridSample", ["image", "grid"], ["y"]),
    ]
    given = model(
        nodes, [info("x", [1, 2]), info("image", [1, 1, 4, 4])], [info("y", None)],
        held(
            w=np.full((2, 6), 0.1, np.float32), two_by_three=np.array([1, 2, 3]),
            size=np.array([1, 1, 4, 4]),
        ), opset=20, ir_version=9,
    )  # fmt: skip
    module = GraphModule.from_model(given)
    assert trained(module) == ["w"]
    module(torch.tensor([[1.0, 2.0]]), torch.arange(16.0).reshape(1, 1, 4, 4)).sum().backward()
    assert np.any(gradients(module)["w"])


def test_a_tensor_that_lies_where_an_operator_reads_a_setting_is_reported_as_frozen():
    nodes = [node("GridSample", ["x", "grid"], ["y"])]
    grid = np.zeros((1, 1, 1, 2), np.float32)
    given = model(nodes, [info("x", [1, 1, 4, 4])], [info("y", None)], held(grid=grid), opset=20)
    module = GraphModule.from_model(given)
    assert trained(module) == []
    assert module.frozen == ("grid",)


def test_statistics_behind_an_identity_are_state_and_shared():
    norm = [
        node("Identity", ["mean"], ["mean2"]),
        node("BatchNormalization", ["x", "s", "b", "mean", "var"], ["h"], momentum=0.5),
        node("BatchNormalization", ["h", "s", "b", "mean2", "var2"], ["y"], momentum=0.5),
    ]
    one = [1.0, 1.0]
    given = model(norm, ["x"], ["y"], held(s=one, b=one, mean=[0.0, 0.0], var=one, var2=one))
    module = GraphModule.from_model(checked(given)).train()
    assert trained(module) == ["b", "s"]
    assert set(module.running_statistics) == {"mean", "var", "var2"}
    module(torch.tensor([[2.0, 4.0], [4.0, 8.0]]))
    # Moved to [1.5, 3] by the first layer, and then towards the mean of its results, 1.
    assert torch.allclose(module.get_buffer("mean"), torch.tensor([1.25, 2.0]))


def test_weights_that_lead_to_no_output_are_left_alone():
    nodes = [node("MatMul", ["x", "w"], ["y"]), node("MatMul", ["x", "v"], ["z"])]
    assert uses_of(model(nodes, ["x"], ["y"], held(w=W, v=W))).weights == {"w"}


def test_the_user_may_choose_and_the_rest_is_frozen_state():
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "v"], ["y"])]
    given = model(nodes, ["x"], ["y"], held(w=W, v=W))
    for choice in (["v"], lambda name: name == "v"):
        module = GraphModule.from_model(given, trainable=choice)
        assert trained(module) == ["v"]
        assert module.frozen == ("w",)
        assert set(module.state_dict()) == {"w", "v"}
    with pytest.raises(ConfigError, match=r"trainable names 'q'.*choose from \['v', 'w'\]"):
        GraphModule.from_model(given, trainable=["q"])


@pytest.mark.case("O-X6")
def test_scale_and_bias_of_batch_normalisation_are_trained_and_its_statistics_are_state():
    given = model(
        [node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y"], momentum=0.9)],
        [info("x", [2, 2])], ["y"],
        held(scale=[1.0, 1.0], bias=[0.0, 0.0], mean=[0.0, 0.0], var=[1.0, 1.0]),
    )  # fmt: skip
    module = GraphModule.from_model(checked(given))
    assert trained(module) == ["bias", "scale"]
    assert module.running_statistics == ("mean", "var")
    assert module.coupling == ("y",)
    module.train()
    module(torch.tensor([[1.0, 2.0], [3.0, 6.0]])).sum().backward()
    assert torch.allclose(module.get_buffer("mean"), torch.tensor([0.2, 0.4]))
    # The variance of the population; torch's rule would give 1.1 and 1.7.
    assert torch.allclose(module.get_buffer("var"), torch.tensor([1.0, 1.3]))


@pytest.mark.case("O-X7")
@pytest.mark.parametrize(
    ("name", "real", "place", "whole", "floats"),
    [("light_squeezenet", "data_0", 13, 39, 13), ("light_resnet50", "gpu_0/data_0", None, 240, 29)],
)
def test_weights_listed_as_inputs_are_told_from_the_real_input(name, real, place, whole, floats):
    path = Path(onnx.backend.test.__file__).parent / "data" / "light" / f"{name}.onnx"
    given = onnx.load(str(path))
    listed = [value.name for value in given.graph.input]
    kinds = {tensor.name: tensor.data_type for tensor in given.graph.initializer}
    assert len(listed) == len(kinds) + 1
    assert place is None or listed[place] == real
    assert list(kinds.values()).count(TensorProto.INT64) == whole
    assert list(kinds.values()).count(TensorProto.FLOAT) == floats
    module = GraphModule.from_model(given)
    assert module.input_names == (real,)
    # The whole numbers are shapes; of the floats those are kept that the graph reads.
    assert all(kinds[name] == TensorProto.FLOAT for name in module.initializer_names.values())
    assert len(module.initializer_names) == {"data_0": 13, "gpu_0/data_0": 28}[real]

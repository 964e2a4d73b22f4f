"""Functions of a model and bodies of the standard are opened in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import AttributeProto, TensorProto, helper

from tests.adapters.unified_ipu_onnx.written_graphs import (
    branch,
    checked,
    gradients,
    held,
    info,
    model,
    node,
)
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.module import GraphModule

X = torch.tensor([[1.0, -2.0]])


def function(name, inputs, outputs, nodes, *, attributes=(), defaults=(), domains=()):
    imports = [helper.make_opsetid("", 13), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_function(
        "mine", name, inputs, outputs, nodes, imports, list(attributes), list(defaults)
    )


def refer(made, attribute, kind, name=None):
    """Let a node take an attribute from its caller."""
    made.attribute.append(
        AttributeProto(name=name or attribute, ref_attr_name=attribute, type=kind)
    )
    return made


def leaky(alpha="alpha"):
    return refer(node("LeakyRelu", ["a"], ["b"]), alpha, AttributeProto.FLOAT, "alpha")


def test_a_function_takes_attributes_of_its_call_and_defaults():
    f = function("F", ["a"], ["b"], [leaky()], defaults=[helper.make_attribute("alpha", 0.5)])
    g = function("G", ["a"], ["b"], [leaky("slope")], attributes=["slope"])
    nodes = [
        node("F", ["x"], ["p"], domain="mine"),
        node("F", ["x"], ["q"], domain="mine", alpha=0.25),
        node("G", ["x"], ["r"], domain="mine"),
    ]
    given = model(nodes, ["x"], ["p", "q", "r"], functions=[f, g], domains=["mine"])
    found = GraphModule.from_model(given)(X)
    assert found["p"].tolist() == [[1.0, -1.0]]
    assert found["q"].tolist() == [[1.0, -0.5]]
    # An attribute that the call leaves out has the operator's own default.
    assert torch.allclose(found["r"], torch.tensor([[1.0, -0.02]]))


def test_functions_call_functions_and_their_names_stay_apart():
    inner = function("In", ["x"], ["y"], [node("Add", ["x", "x"], ["y"])])
    outer = function(
        "Out",
        ["y"],
        ["x"],
        [
            node("In", ["y"], ["h"], domain="mine"),
            node("In", ["h"], ["k"], domain="mine"),
            node("Neg", ["k"], ["x"]),
        ],
        domains=["mine"],
    )
    nodes = [node("Out", ["x"], ["h"], domain="mine"), node("Mul", ["h", "w"], ["y"])]
    given = model(
        nodes, ["x"], ["y"], held(w=[1.0, 10.0]), functions=[inner, outer], domains=["mine"]
    )
    module = GraphModule.from_model(checked(given))
    y = module(X)
    y.sum().backward()
    assert y.tolist() == [[-4.0, 80.0]]
    assert gradients(module)["w"] == [-4.0, 8.0]


def test_an_attribute_reaches_a_branch_inside_a_function():
    then = branch([leaky()], ["b"])
    other = branch([node("Neg", ["a"], ["c"])], ["c"])
    f = function(
        "F", ["a", "flag"], ["y"],
        [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        attributes=["alpha"],
    )  # fmt: skip
    given = model(
        [node("F", ["x", "flag"], ["y"], domain="mine", alpha=0.5)],
        ["x", info("flag", [], TensorProto.BOOL)], ["y"], functions=[f], domains=["mine"],
    )  # fmt: skip
    module = GraphModule.from_model(given)
    assert module(X, torch.tensor(True)).tolist() == [[1.0, -1.0]]
    assert module(X, torch.tensor(False)).tolist() == [[-1.0, 2.0]]


def test_an_input_that_a_call_leaves_out_is_absent_inside():
    f = function("F", ["a", "low", "high"], ["b"], [node("Clip", ["a", "low", "high"], ["b"])])
    given = model(
        [node("F", ["x", "", "high"], ["y"], domain="mine")],
        ["x"], ["y"], held(high=0.5), functions=[f], domains=["mine"],
    )  # fmt: skip
    assert GraphModule.from_model(given)(X).tolist() == [[0.5, -2.0]]


def test_a_function_of_the_models_own_hides_an_operator_of_the_same_name():
    f = helper.make_function(
        "", "Relu", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    given = model([node("Relu", ["x"], ["y"])], ["x"], ["y"], functions=[f])
    assert GraphModule.from_model(given)(X).tolist() == [[-1.0, 2.0]]


def test_a_function_that_does_not_compute_its_output_is_named():
    f = function("F", ["a"], ["b"], [node("Neg", ["a"], ["c"])])
    given = model(
        [node("F", ["x"], ["y"], name="call", domain="mine")],
        ["x"], ["y"], functions=[f], domains=["mine"],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="at 'call' lists the output 'b'"):
        GraphModule.from_model(given)


def test_a_body_of_the_standard_takes_its_defaults_from_the_definition():
    # axes = [0, 2, 3] stands in the operator's definition only.
    nodes = [node("MeanVarianceNormalization", ["x"], ["y"])]
    module = GraphModule.from_model(model(nodes, [info("x", [2, 1, 1, 2])], [info("y", None)]))
    x = torch.tensor([[[[1.0, 3.0]]], [[[5.0, 7.0]]]])
    expected = (np.array([1.0, 3.0, 5.0, 7.0]) - 4.0) / np.sqrt(5.0)
    assert np.allclose(module(x).numpy().ravel(), expected, atol=1e-6)


def softmax(x):
    e = np.exp(np.float64(x - x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, mask=0.0):
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + mask) @ v


def attention_node(**rest):
    return node("Attention", ["q", "k", "v"], ["y"], **rest)


@pytest.mark.parametrize("causal", [0, 1])
def test_a_body_that_depends_on_types_is_asked_for_with_those_inferred(causal):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3))
    shape = [1, 2, 3, 4]
    nodes = [node("Mul", ["a", "w"], ["q"]), attention_node(is_causal=causal)]
    given = model(
        nodes,
        [info("a", shape), info("k", shape), info("v", shape)],
        [info("y", shape)], held(w=[2.0]), opset=23, ir_version=10,
    )  # fmt: skip
    module = GraphModule.from_model(checked(given))
    y = module(*(torch.from_numpy(array) for array in (q / 2, k, v)))
    mask = np.triu(np.full((3, 3), -np.inf), 1) if causal else 0.0
    assert np.allclose(y.detach().numpy(), attention(q, k, v, mask), atol=1e-6)
    y.sum().backward()
    assert list(gradients(module)) == ["w"]


def test_such_a_body_is_opened_inside_functions_and_branches_too():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3)]
    shape = [1, 2, 3, 4]
    f = helper.make_function(
        "mine", "F", ["q0", "k", "v"], ["y"],
        [node("Identity", ["q0"], ["q"]), attention_node()], [helper.make_opsetid("", 23)],
    )  # fmt: skip
    then = branch([node("F", ["q", "k", "v"], ["p"], domain="mine")], [info("p", shape)])
    other = branch([attention_node(scale=0.0)], [info("y", shape)])
    given = model(
        [node("If", ["flag"], ["z"], then_branch=then, else_branch=other)],
        [*(info(name, shape) for name in "qkv"), info("flag", [], TensorProto.BOOL)],
        [info("z", shape)], functions=[f], domains=["mine"], opset=23, ir_version=10,
    )  # fmt: skip
    module = GraphModule.from_model(given)
    q, k, v = map(torch.from_numpy, arrays)
    found = module(q, k, v, torch.tensor(True)).numpy()
    assert np.allclose(found, attention(arrays[0], arrays[1], arrays[2]), atol=1e-6)
    plain = module(q, k, v, torch.tensor(False)).numpy()
    assert np.allclose(plain, np.broadcast_to(arrays[2].mean(2, keepdims=True), shape), atol=1e-6)


def test_a_body_whose_types_cannot_be_known_is_refused_with_the_reason():
    shape = [1, 2, 3, 4]
    gone = node("Gone", ["a"], ["q"], domain="mine")
    given = model(
        [gone, node("Mul", ["b", "w"], ["k"]), attention_node()],
        [info(name, shape) for name in "abv"], [info("y", shape)], held(w=[2.0]),
        domains=["mine"], opset=23, ir_version=10,
    )  # fmt: skip
    both = r"Gone.*Attention \(node 'y'.*\): its body depends on types"
    with pytest.raises(CapabilityError, match=both):
        GraphModule.from_model(given)

"""Arithmetic with shapes stays off the device, and is what the standard says."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.adapters.unified_ipu_onnx.written_graphs import held, info, model, node
from unified_ipu_onnx.module import GraphModule

INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT


def constants(**arrays):
    return held(**{name: np.array(value) for name, value in arrays.items()})


def flatten_by_shape():
    """The chain that exporters write for ``x.reshape(x.shape[0], -1)``."""
    return model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Unsqueeze", ["n", "axes"], ["n1"]),
            node("Concat", ["n1", "rest"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["y"]),
        ],
        [info("x", ["N", 3, 2])], ["y"], constants(zero=0, axes=[0], rest=[-1]),
    )  # fmt: skip


def test_the_chain_from_shape_to_reshape_reads_no_device():
    module = GraphModule.from_model(flatten_by_shape())
    assert module(torch.zeros(5, 3, 2)).shape == (5, 6)
    # A meta tensor has no elements: whoever asked for one would fail.
    assert module.to("meta")(torch.zeros(4, 3, 2, device="meta")).shape == (4, 6)


def test_what_leaves_the_host_is_a_tensor_on_the_device_of_the_rest():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Mul", ["x", "f"], ["y"]),
    ]
    module = GraphModule.from_model(model(nodes, ["x"], ["y"], held(w=[1.0])))
    assert module(torch.ones(1, 2)).tolist() == [[1.0, 2.0]]
    assert module.to("meta")(torch.ones(1, 2, device="meta")).device.type == "meta"


S = [3, 4, 5]  # the shape that all of these start from
CASES: Dict[str, Tuple[List[Any], Dict[str, Any]]] = {
    "Size": ([node("Size", ["x"], ["y"])], {}),
    "Shape in part": ([node("Shape", ["x"], ["y"], start=1, end=-1)], {}),
    "Gather several": ([node("Gather", ["s", "i"], ["y"])], {"i": [[2, -1], [0, 1]]}),
    "Slice backward": (
        [node("Slice", ["s", "a", "b", "c", "d"], ["y"])],
        {"a": [-1], "b": [-(2**63)], "c": [0], "d": [-1]},
    ),
    "Slice to the end": ([node("Slice", ["s", "a", "b"], ["y"])], {"a": [1], "b": [2**63 - 1]}),
    "Squeeze": (
        [node("Slice", ["s", "a", "b"], ["t"]), node("Squeeze", ["t"], ["y"])],
        {"a": [1], "b": [2]},
    ),
    "Squeeze an axis": (
        [node("Slice", ["s", "a", "b"], ["t"]), node("Squeeze", ["t", "c"], ["y"])],
        {"a": [1], "b": [2], "c": [-1]},
    ),
    "Unsqueeze": ([node("Unsqueeze", ["s", "a"], ["y"])], {"a": [0, -1]}),
    "Concat": ([node("Concat", ["a", "s", "s"], ["y"], axis=0)], {"a": [7]}),
    "Add": ([node("Add", ["s", "a"], ["y"])], {"a": [-3, 0, 2]}),
    "Sub": ([node("Sub", ["a", "s"], ["y"])], {"a": 4}),
    "Mul": ([node("Mul", ["s", "s"], ["y"])], {}),
    "Div of a negative": (
        [node("Neg", ["s"], ["n"]), node("Div", ["n", "a"], ["y"])],
        {"a": [2, 3, -2]},
    ),
    "Mod": ([node("Mod", ["a", "s"], ["y"])], {"a": [-7, 7, 5]}),
    "Mod like C": ([node("Mod", ["a", "s"], ["y"], fmod=1)], {"a": [-7, 7, 5]}),
    "Abs": ([node("Sub", ["s", "a"], ["n"]), node("Abs", ["n"], ["y"])], {"a": [9, 9, 1]}),
    "Min and Max": (
        [node("Min", ["s", "a"], ["m"]), node("Max", ["m", "b", "s"], ["y"])],
        {"a": 4, "b": [2, 5, 0]},
    ),
    "Where": (
        [node("Equal", ["s", "a"], ["e"]), node("Where", ["e", "b", "s"], ["y"])],
        {"a": [4], "b": [-1]},
    ),
    "Not, And, Or": (
        [
            node("Greater", ["s", "a"], ["g"]),
            node("Less", ["s", "b"], ["l"]),
            node("And", ["g", "l"], ["h"]),
            node("Not", ["h"], ["n"]),
            node("Or", ["n", "g"], ["o"]),
            node("Cast", ["o"], ["y"], to=INT),
        ],
        {"a": 3, "b": 5},
    ),
    "Expand": ([node("Expand", ["s", "a"], ["y"])], {"a": [2, 1]}),
    "Reshape": ([node("Reshape", ["s", "a"], ["y"])], {"a": [0, 1, -1]}),
    "Range": (
        [node("Gather", ["s", "i"], ["n"]), node("Range", ["a", "n", "b"], ["y"])],
        {"i": 2, "a": 0, "b": 2},
    ),
    "ReduceProd": ([node("ReduceProd", ["s"], ["y"], keepdims=0)], {}),
    "ReduceSum": ([node("ReduceSum", ["s", "a"], ["y"])], {"a": [0]}),
    "ReduceMax": ([node("ReduceMax", ["s"], ["y"], axes=[0])], {}),
    "ReduceMin": ([node("ReduceMin", ["s"], ["y"])], {}),
    "Split": (
        [node("Split", ["s", "a"], ["p", "q"]), node("Concat", ["q", "p"], ["y"], axis=0)],
        {"a": [1, 2]},
    ),
    "ConstantOfShape": (
        [
            node("ConstantOfShape", ["s"], ["c"], value=numpy_helper.from_array(np.array([2]))),
            node("ReduceSum", ["c"], ["y"], keepdims=0),
        ],
        {},
    ),
    "int32": ([node("Cast", ["s"], ["t"], to=6), node("Add", ["t", "t"], ["u"]),
               node("Cast", ["u"], ["y"], to=INT)], {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_operator_computes_on_the_host_what_the_standard_says(case):
    nodes, held_arrays = CASES[case]
    given = model(
        [node("Shape", ["x"], ["s"]), *nodes],
        [info("x", S)], [info("y", None, INT)], constants(**held_arrays), opset=15,
    )  # fmt: skip
    module = GraphModule.from_model(given)
    x = np.zeros(S, np.float32)
    (expected,) = ReferenceEvaluator(given).run(None, {"x": x})
    found = module(torch.from_numpy(x))
    assert found.dtype == torch.int64
    assert found.numpy().shape == np.shape(expected)
    assert np.array_equal(found.numpy(), expected)
    # With nothing but numbers of its shape to go by, the result can still be worked out.
    shaped = model(
        [*given.graph.node, node("Reshape", ["y", "flat"], ["z"]),
         node("Tile", ["w", "once"], ["o"]), node("ConstantOfShape", ["z"], ["r"])],
        [info("x", S)], [info("r", None)],
        [*given.graph.initializer, *constants(flat=[-1], once=[1]), *held(w=[1.0])], opset=15,
    )  # fmt: skip
    if np.size(expected) < 4 and np.min(expected) >= 0:
        on_meta = GraphModule.from_model(shaped).to("meta")
        assert list(on_meta(torch.zeros(S, device="meta")).shape) == list(np.ravel(expected))


def test_old_spellings_with_attributes_are_known_too():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s"], ["a"], starts=[0], ends=[1]),
        node("Squeeze", ["a"], ["b"], axes=[0]),
        node("Unsqueeze", ["b"], ["c"], axes=[0]),
        node("Concat", ["c", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    given = model(nodes, [info("x", ["N", 3, 2])], ["y"], constants(rest=[6]), opset=9)
    module = GraphModule.from_model(given).to("meta")
    assert module(torch.zeros(4, 3, 2, device="meta")).shape == (4, 6)


def test_the_shape_of_a_weight_is_a_constant():
    nodes = [
        node("Shape", ["w"], ["s"]),
        node("Reshape", ["x", "s"], ["h"]),
        node("Add", ["h", "w"], ["y"]),
    ]
    module = GraphModule.from_model(model(nodes, ["x"], ["y"], held(w=[[1.0, 2.0]])))
    assert module(torch.zeros(2, 1)).tolist() == [[1.0, 2.0]]
    assert "s" in module.computed_names()


def test_a_branch_gets_a_shape_from_around_it():
    inner = helper.make_graph(
        [node("Reshape", ["x", "s"], ["p"])], "inner", [], [info("p", ["N", "M"])]
    )
    nodes = [
        node("Shape", ["z"], ["s"]),
        node("If", ["flag"], ["y"], then_branch=inner, else_branch=inner),
    ]
    given = model(nodes, ["x", "z", info("flag", [], BOOL)], ["y"])
    module = GraphModule.from_model(given)
    assert module(torch.zeros(2, 3), torch.zeros(3, 2), torch.tensor(True)).shape == (3, 2)

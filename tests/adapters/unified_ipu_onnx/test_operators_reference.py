"""What only the reference evaluator of ONNX computes, and integers that only numpy adds."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.module import GraphModule


def graph(nodes: List[Any], inputs: Any, outputs: Any, held: Any = ()) -> Any:
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        list(held),
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_node_that_nothing_trained_leads_to_is_computed_and_reported() -> None:
    nodes = [
        helper.make_node("BitShift", ["n", "one"], ["m"], name="half", direction="RIGHT"),
        helper.make_node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "w"], ["y"]),
    ]
    held = [
        helper.make_tensor("one", TensorProto.UINT8, [1], [1]),
        helper.make_tensor("w", TensorProto.FLOAT, [1], [0.5]),
    ]
    inputs = [("n", TensorProto.UINT8, [3])]
    module = GraphModule.from_model(graph(nodes, inputs, [("y", TensorProto.FLOAT)], held))
    assert [(node.label, node.op_type) for node in module.fallbacks] == [("half", "BitShift")]
    y = module(torch.tensor([4, 7, 255], dtype=torch.uint8))
    assert y.tolist() == [1.0, 1.5, 63.5]
    y.sum().backward()
    gradient = module.get_parameter(next(iter(dict(module.named_parameters())))).grad
    assert gradient is not None
    assert gradient.tolist() == [2.0 + 3.0 + 127.0]


def test_a_node_behind_a_weight_is_refused_by_name_instead() -> None:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["moved"]),
        helper.make_node(
            "MaxRoiPool", ["moved", "regions"], ["y"], name="pool", pooled_shape=[1, 1]
        ),
    ]
    held = [helper.make_tensor("w", TensorProto.FLOAT, [1], [0.5])]
    inputs = [("x", TensorProto.FLOAT, [1, 1, 2, 2]), ("regions", TensorProto.FLOAT, [1, 5])]
    with pytest.raises(CapabilityError, match=r"MaxRoiPool \(node 'pool'"):
        GraphModule.from_model(graph(nodes, inputs, [("y", TensorProto.FLOAT)], held))


@pytest.mark.parametrize("is_behind_a_weight", [False, True])
def test_the_evaluator_is_not_asked_for_a_node_behind_a_weight(
    monkeypatch: pytest.MonkeyPatch, is_behind_a_weight: bool
) -> None:
    # Differentiable by its schema, and an evaluator that would compute it.
    monkeypatch.setattr(
        "unified_ipu_onnx.building.by_reference", lambda proto, node: lambda x, regions: x * 2
    )
    nodes = [
        helper.make_node("Add", ["x", "w"], ["moved"]),
        helper.make_node(
            "MaxRoiPool",
            ["moved" if is_behind_a_weight else "x", "regions"],
            ["y"],
            name="pool",
            pooled_shape=[1, 1],
        ),
    ]
    held = [helper.make_tensor("w", TensorProto.FLOAT, [1], [0.5])]
    inputs = [("x", TensorProto.FLOAT, [1, 1, 2, 2]), ("regions", TensorProto.FLOAT, [1, 5])]
    given = graph(nodes, inputs, [("y", TensorProto.FLOAT), ("moved", TensorProto.FLOAT)], held)
    if is_behind_a_weight:
        with pytest.raises(CapabilityError, match=r"MaxRoiPool \(node 'pool'"):
            GraphModule.from_model(given)
        return
    module = GraphModule.from_model(given)
    assert [node.op_type for node in module.fallbacks] == ["MaxRoiPool"]
    y = module(torch.ones(1, 1, 2, 2), torch.zeros(1, 5))["y"]
    assert y.tolist() == [[[[2.0, 2.0], [2.0, 2.0]]]]


def test_a_decoder_of_pictures_is_refused_although_the_evaluator_lists_it() -> None:
    """It needs a package that is not there, and would say so in the middle of an epoch."""
    node = helper.make_node("ImageDecoder", ["bytes"], ["y"], name="decode")
    made = graph([node], [("bytes", TensorProto.UINT8, [4])], [("y", TensorProto.UINT8)])
    made.opset_import[0].version = 20
    with pytest.raises(CapabilityError, match="ImageDecoder"):
        GraphModule.from_model(made)


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("Add", [2**64 - 1, 8]),
        ("Sub", [2**64 - 3, 2]),
        ("Mul", [2**64 - 2, 15]),
        ("Div", [2**64 - 2, 1]),
        ("Max", [2**64 - 2, 5]),
        ("Min", [1, 3]),
        ("Greater", [True, True]),
        ("LessOrEqual", [False, False]),
    ],
)
def test_numbers_above_two_to_the_63_are_no_negative_ones(op_type: str, expected: Any) -> None:
    kind = TensorProto.BOOL if isinstance(expected[0], bool) else TensorProto.UINT64
    node = helper.make_node(op_type, ["a", "b"], ["y"])
    inputs = [("a", TensorProto.UINT64, [2]), ("b", TensorProto.UINT64, [2])]
    module = GraphModule.from_model(graph([node], inputs, [("y", kind)]))
    a = torch.from_numpy(np.array([2**64 - 2, 5], np.uint64))
    b = torch.from_numpy(np.array([1, 3], np.uint64))
    assert module(a, b).tolist() == expected

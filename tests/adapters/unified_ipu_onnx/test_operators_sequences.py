"""Sequences and optional values inside a graph that trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from tests.adapters.unified_ipu_onnx.graphs import model, value
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.module import GraphModule


def number(of: int) -> Any:
    return np.array(of, np.int64)


def built(nodes: Any, held: Any) -> GraphModule:
    proto = model(nodes, [value("x", [2, 4])], [value("y", None)], held, opset=17)
    return GraphModule.from_model(proto)


def test_gradients_go_through_a_sequence_to_where_its_elements_came_from() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=1, keepdims=1),
        helper.make_node("SequenceErase", ["parts", "second"], ["fewer"]),
        helper.make_node("SequenceAt", ["fewer", "last"], ["tail"]),
        helper.make_node("SequenceInsert", ["fewer", "tail", "first"], ["more"]),
        helper.make_node("ConcatFromSequence", ["more"], ["y"], axis=1),
    ]
    held = {"first": number(0), "second": number(1), "last": number(-1)}
    module = built(nodes, held)
    x = torch.arange(8.0).reshape(2, 4).requires_grad_()
    y = module(x)
    assert y.tolist() == [[3.0, 0.0, 2.0, 3.0], [7.0, 4.0, 6.0, 7.0]]
    (y * torch.tensor([10.0, 1.0, 1.0, 1.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 0.0, 1.0, 11.0]] * 2


@pytest.mark.parametrize(
    ("sizes", "lengths"), [(number(3), [3, 1]), (np.array([1, 3], np.int64), [1, 3])]
)
def test_a_size_and_a_list_of_sizes_split_alike_to_torch(sizes: Any, lengths: Any) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "which"], ["y"]),
    ]
    x = torch.arange(8.0).reshape(2, 4)
    for index, length in enumerate(lengths):
        module = built(nodes, {"sizes": sizes, "which": number(index)})
        start = sum(lengths[:index])
        assert torch.equal(module(x), x[:, start : start + length])


def test_an_optional_value_that_is_absent_says_so() -> None:
    nodes = [
        helper.make_node("OptionalHasElement", [""], ["absent"]),
        helper.make_node("OptionalHasElement", ["x"], ["present"]),
        helper.make_node("OptionalGetElement", ["x"], ["y"]),
    ]
    flags = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("absent", "present")]
    proto = model(nodes, [value("x", [2])], [*flags, value("y", [2])], {}, opset=18)
    found = GraphModule.from_model(proto)(torch.tensor([1.0, 2.0]))
    assert [found[name].tolist() for name in ("absent", "present", "y")] == [
        False,
        True,
        [1.0, 2.0],
    ]


def test_an_empty_optional_of_a_declared_type_is_refused_by_name() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Optional", [], ["nothing"], type=kind),
        helper.make_node("OptionalGetElement", ["nothing"], ["y"], name="ask"),
    ]
    with pytest.raises(CapabilityError, match="Optional \\(node 'nothing'"):
        GraphModule.from_model(model(nodes, [], [value("y", [2])], {}, opset=18))

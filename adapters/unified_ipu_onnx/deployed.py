"""The model as onnxruntime runs it: in inference mode, with the weights as inputs.

Weights that are inputs can be bound to the memory that training changes, so nothing is serialised
or copied when they change. It costs what a runtime gains from constant weights, some 20 % of a
small model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Collection, Iterable, Iterator, Optional, Sequence

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from unified_ipu_onnx.contents import is_outside
from unified_ipu_onnx.reading import opsets_of
from unified_ipu_onnx.tensors import to_torch
from unified_ipu_onnx.values import put_raw, raw_bytes

_FIRST_WITH_TRAINING_INPUT = 12  # of Dropout
_FIRST_WITHOUT_IS_TEST = 7  # of BatchNormalization and Dropout
_DRAWING = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def deployed(
    proto: ModelProto,
    weights: Collection[str],
    *,
    base_dir: Optional[Path] = None,
    exposed: Sequence[str] = (),
) -> ModelProto:
    """Return the model for inference.

    Args:
        proto: Not changed.
        weights: Initializers that become inputs.
        base_dir: Folder of data beside the model.
        exposed: Values of the main graph that become outputs, behind its own.

    Returns:
        A model that holds no weights, has no fixed batch size, and does not train.
    """
    made = ModelProto()
    made.ir_version = max(proto.ir_version, 4)  # before, every initializer was an input too
    made.opset_import.extend(proto.opset_import)
    made.functions.extend(proto.functions)
    graph = made.graph
    graph.name = proto.graph.name or "graph"
    graph.node.extend(proto.graph.node)
    held = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in held:
            graph.input.add().CopyFrom(value)
            _free_first_axis(graph.input[-1])
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
        else:
            graph.initializer.add().CopyFrom(tensor)
            if is_outside(tensor):
                put_raw(graph.initializer[-1], bytes(raw_bytes(to_torch(tensor, base_dir))))
    for name in [*(value.name for value in proto.graph.output), *exposed]:
        graph.output.append(onnx.ValueInfoProto(name=name))
    to_inference(made)
    return made


def to_inference(proto: ModelProto) -> None:
    """Let layers that behave differently in training be those of inference, in place."""
    opset = opsets_of(proto.opset_import).get("", 1)
    _to_inference(proto.graph.node, opset)
    for function in proto.functions:
        _to_inference(function.node, opsets_of(function.opset_import).get("", opset))


def draws_in_inference(proto: ModelProto) -> bool:
    """Whether a model draws random numbers in inference too."""
    bodies = [proto.graph.node, *(function.node for function in proto.functions)]
    return any(node.op_type in _DRAWING for nodes in bodies for node in _all_nodes(nodes))


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_nodes(inner.node)


def _free_first_axis(value: Any) -> None:
    dims = value.type.tensor_type.shape.dim
    if dims:
        dims[0].ClearField("dim_value")
        dims[0].dim_param = "rows"


def _to_inference(nodes: Iterable[NodeProto], opset: int) -> None:
    for node in _all_nodes(nodes):
        is_norm = node.op_type == "BatchNormalization"
        if node.domain not in {"", "ai.onnx"} or not (is_norm or node.op_type == "Dropout"):
            continue
        _drop_attributes(node, ("training_mode", "is_test"))
        if is_norm:
            del node.output[1:]
        elif opset >= _FIRST_WITH_TRAINING_INPUT:
            del node.input[2:]
        if opset < _FIRST_WITHOUT_IS_TEST:
            node.attribute.append(helper.make_attribute("is_test", 1))


def _drop_attributes(node: NodeProto, names: Collection[str]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def size_of(proto: ModelProto) -> int:
    """Bytes of the initializers that a model holds itself."""
    return sum(_bytes(tensor) for tensor in proto.graph.initializer)


def _bytes(tensor: TensorProto) -> int:
    return len(tensor.raw_data) or int(tensor.ByteSize())

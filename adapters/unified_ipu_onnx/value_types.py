"""Types of values, inferred only when the body of an operator depends on them."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper

from unified_ipu_onnx.attributes import resolved
from unified_ipu_onnx.functions import Body, with_attributes


class Types:
    """Types of the values of one graph or body; asks the graph around for what it lacks.

    Args:
        infer: Returns a graph whose inputs, initializers and ``value_info`` are typed; called at
            the first question.
        outer: Types of the graph around.
    """

    def __init__(self, infer: Any, outer: Optional[Types] = None) -> None:
        self._infer = infer
        self._outer = outer
        self._known: Optional[Dict[str, TypeProto]] = None

    @classmethod
    def of_model(cls, model: ModelProto) -> Types:
        """Types of a model's main graph."""
        return cls(lambda: _inferred(_skeleton(model)))

    def of(self, name: str) -> Optional[TypeProto]:
        """Type of that value, or None if it cannot be inferred."""
        if self._known is None:
            self._known = _collect(self._infer())
        if name in self._known:
            return self._known[name]
        return self._outer.of(name) if self._outer else None

    def of_inputs(self, node: NodeProto, values: Sequence[Any]) -> Optional[List[TypeProto]]:
        """Types of a node's inputs, an empty one for those left out; None if one is unknown.

        Args:
            node: Of this graph.
            values: What the compiler knows of its inputs; a constant has its type.
        """
        found: List[TypeProto] = []
        for index, name in enumerate(node.input):
            value = values[index] if index < len(values) else None
            if value is None:
                found.append(TypeProto())
                continue
            kind = self.of(name) or _type_of(value.constant)
            if kind is None:
                return None
            found.append(kind)
        return found

    def inner(self, graph: GraphProto) -> Types:
        """Types of a branch or loop body, whose ``value_info`` inference of the whole fills."""
        return Types(lambda: graph, self)

    def of_body(self, body: Body, node: NodeProto, values: Sequence[Any]) -> Types:
        """Types of the values of a function's body when it is called by ``node``."""

        def infer() -> GraphProto:
            kinds = self.of_inputs(node, values)
            return _inferred(_model_of(body, kinds)) if kinds is not None else GraphProto()

        return Types(infer)


def _inferred(model: ModelProto) -> GraphProto:
    try:
        return onnx.shape_inference.infer_shapes(model).graph
    except onnx.shape_inference.InferenceError:
        return GraphProto()  # nothing is known; what needs types is then refused by name


def _skeleton(model: ModelProto) -> ModelProto:
    """Copy of a model without the data of its weights: inference serializes what it is given."""
    bare = ModelProto()
    bare.ir_version = max(model.ir_version, 4)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    graph = bare.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.value_info.extend(model.graph.value_info)
    graph.output.extend(model.graph.output)
    held = {tensor.name for tensor in model.graph.initializer}
    graph.input.extend(value for value in model.graph.input if value.name not in held)
    for tensor in model.graph.initializer:
        if _is_shape(tensor):
            graph.initializer.append(tensor)
        else:
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return bare


_LONGEST_SHAPE = 16  # more elements are data


def _is_shape(tensor: TensorProto) -> bool:
    external = tensor.data_location == TensorProto.EXTERNAL
    small = len(tensor.dims) == 0 or (len(tensor.dims) == 1 and tensor.dims[0] <= _LONGEST_SHAPE)
    return not external and small and tensor.data_type == TensorProto.INT64


def _model_of(body: Body, kinds: Sequence[TypeProto]) -> ModelProto:
    model = ModelProto()
    model.ir_version = 8
    for domain, version in body.opsets.items():
        model.opset_import.append(helper.make_opsetid(domain, version))
    model.graph.name = "body"
    for node in body.proto.node:
        model.graph.node.append(with_attributes(node, resolved(node, body.bindings)))
    for name, kind in zip(body.proto.input, kinds):
        if kind.WhichOneof("value"):
            model.graph.input.append(helper.make_value_info(name, kind))
    for name in body.proto.output:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    return model


def _collect(graph: GraphProto) -> Dict[str, TypeProto]:
    values: Iterable[Any] = (*graph.input, *graph.value_info, *graph.output)
    known = {value.name: value.type for value in values if value.type.WhichOneof("value")}
    for tensor in graph.initializer:
        known[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return known


_ELEMENT_TYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}


def _type_of(tensor: Any) -> Optional[TypeProto]:
    if tensor is None:
        return None
    element = _ELEMENT_TYPES.get(str(tensor.dtype).partition(".")[2])
    if element is None:
        return None
    return helper.make_tensor_type_proto(element, list(tensor.shape))

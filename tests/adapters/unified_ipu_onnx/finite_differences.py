"""Slopes of a graph's outputs by another engine: the truth for gradients."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np
import onnxruntime
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, defs, numpy_helper
from onnx.reference import ReferenceEvaluator

Arrays = Dict[str, Any]
Engine = Callable[[Arrays], List[Any]]


def in_double(model: ModelProto) -> ModelProto:
    """Copy of a model of one node with double for float32, where the operator takes both."""
    copy = ModelProto()
    copy.CopyFrom(model)
    (node,) = copy.graph.node
    single = _always_single(node, {o.domain: o.version for o in model.opset_import}[node.domain])
    for value in (*copy.graph.input, *copy.graph.output):
        kind = value.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT and value.name not in single:
            kind.elem_type = TensorProto.DOUBLE
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(attribute.t).astype(np.float64)
            attribute.t.CopyFrom(numpy_helper.from_array(array))
    return copy


def _always_single(node: NodeProto, opset: int) -> List[str]:
    schema = defs.get_schema(node.op_type, opset, node.domain)
    found = []
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for index, name in enumerate(names):
            # The last one may stand for any number.
            if "tensor(double)" not in formals[min(index, len(formals) - 1)].types:
                found.append(name)
    return found


def feeds_of(model: ModelProto, inputs: Sequence[Any]) -> Arrays:
    """Inputs by name, in the types that the model asks for."""
    found = {}
    for value, given in zip(model.graph.input, inputs):
        array = numpy_helper.to_array(given) if isinstance(given, TensorProto) else given
        double = value.type.tensor_type.elem_type == TensorProto.DOUBLE
        found[value.name] = np.array(array, np.float64) if double else np.array(array)
    return found


def engine_of(model: ModelProto, feeds: Arrays) -> Engine:
    """onnxruntime, or the reference evaluator of ONNX where that has no kernel for these types."""
    try:
        engine = runtime_of(model)
        engine(feeds)
    except Exception:  # noqa: BLE001  # it has an error of its own for each reason
        evaluator: Any = ReferenceEvaluator(model)
        return lambda feeds: list(evaluator.run(None, feeds))
    return engine


def runtime_of(model: ModelProto) -> Engine:
    """onnxruntime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: list(session.run(None, feeds))


def slope(
    engine: Engine,
    feeds: Arrays,
    direction: Mapping[str, Any],
    cotangents: Sequence[Any],
    step: float,
) -> float:
    """Change of ``sum(cotangent * output)`` along a direction, by central differences.

    Args:
        engine: Gives the outputs.
        feeds: Inputs by name.
        direction: Of some of them, of unit size in each element.
        cotangents: One an output; None for one that does not count.
        step: Length along the direction.
    """

    def loss(sign: float) -> float:
        moved = dict(feeds)
        for name, along in direction.items():
            value = feeds[name]
            moved[name] = np.asarray(value + sign * step * along, value.dtype)
        total = 0.0
        for output, cotangent in zip(engine(moved), cotangents):
            if cotangent is not None:
                counted = cotangent != 0  # where the output is infinite it is 0
                total += float((np.asarray(output, np.float64)[counted] * cotangent[counted]).sum())
        return total

    return (loss(1.0) - loss(-1.0)) / (2 * step)

"""Models as PopART reads them: what they hold, and what is known of their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Union

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

from unified_ipu_onnx.emulated.popart.enums import DataType
from unified_ipu_onnx.emulated.popart.errors import popart_exception
from unified_ipu_onnx.emulated.popart.support import (
    GRAPHCORE,
    NEWEST_OPSET,
    OLDEST_OPSET,
    check_operator,
)
from unified_ipu_onnx.emulated.popart.tensor_info import TensorInfo
from unified_ipu_onnx.reading import opsets_of, plain_domain


def onnx_type(kind: DataType) -> int:
    """ONNX's number of a type."""
    return int(TensorProto.DataType.Value(kind.name))


def tensor_of(array: Any, name: str) -> TensorProto:
    """A tensor as PopART writes it: float32 as numbers that scripts read, and not as bytes."""
    if array.dtype != np.float32:
        return numpy_helper.from_array(array, name)
    return helper.make_tensor(name, TensorProto.FLOAT, array.shape, array.reshape(-1))


def load(model: Union[str, bytes, Path]) -> ModelProto:
    """Read a model from bytes or a file.

    Raises:
        popart_exception: If it is none, or its operator set is too new.
    """
    try:
        if isinstance(model, bytes):  # noqa: SIM108  mypy follows it
            proto = onnx.load_from_string(model)
        else:
            proto = onnx.load(str(model))
    except Exception as error:  # of many classes
        raise popart_exception(
            f"Failed to load a ModelProto from the string {str(model)[:60]!r}: {error}"
        ) from error
    version = opsets_of(proto.opset_import).get("", OLDEST_OPSET)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise popart_exception(
            f"the model has operator set {version}, PopART knows {OLDEST_OPSET} to {NEWEST_OPSET}; "
            "convert it with onnx.version_converter, or export it again"
        )
    return proto


def check_model(proto: ModelProto) -> None:
    """Refuse a model with an operator that PopART does not run.

    Raises:
        popart_exception: Naming the first one.
    """
    versions = opsets_of(proto.opset_import)
    for node in proto.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        check_operator(domain, node.op_type, versions.get(domain, 1))


def infos_of(proto: ModelProto) -> Dict[str, TensorInfo]:
    """Shape and type of every tensor of which the standard lets them be inferred."""
    inferred = shape_inference.infer_shapes(_inferable(proto))
    graph = inferred.graph
    found = {t.name: _info(t.data_type, list(t.dims)) for t in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        sizes = [dim.dim_value for dim in kind.shape.dim]
        if kind.elem_type and kind.HasField("shape") and all(sizes):
            found.setdefault(value.name, _info(kind.elem_type, sizes))
    return found


def info_of(proto: ModelProto, name: str) -> TensorInfo:
    """Shape and type of one tensor.

    Raises:
        popart_exception: If they are not known.
    """
    found = infos_of(proto).get(name)
    if found is None:
        raise popart_exception(f"shape and type of tensor {name!r} are not known")
    return found


def _info(kind: int, shape: Any) -> TensorInfo:
    return TensorInfo(TensorProto.DataType.Name(kind), shape)


_SAME = frozenset({"Detach", "Nop", "Scale"})


def _inferable(proto: ModelProto) -> ModelProto:
    """A copy in which what PopART alone knows is said in terms of ONNX, for shapes only."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    if not any(not plain_domain(entry.domain) for entry in copy.opset_import):
        copy.opset_import.append(onnx.helper.make_opsetid("", NEWEST_OPSET))
    for node in copy.graph.node:
        if node.domain != GRAPHCORE:
            continue
        texts = {a.name: a.s.decode() for a in node.attribute if a.type == a.STRING}
        is_vector = node.op_type in _SAME or texts.get("reduction") == "None"
        node.domain = ""
        del node.attribute[:]
        if not is_vector:
            del node.input[1:]
            node.op_type = "ReduceMean"
            node.attribute.append(onnx.helper.make_attribute("keepdims", 0))
        elif node.op_type == "Nll":
            del node.input[1:]
            node.op_type = "ReduceMean"
            node.attribute.append(onnx.helper.make_attribute("keepdims", 0))
            node.attribute.append(onnx.helper.make_attribute("axes", [-1]))
        else:
            node.op_type = "Identity"
    return copy

"""Small graphs that tests of the ONNX adapter share."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper, numpy_helper

KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


def value(name: str, shape: Any, dtype: str = "float32") -> Any:
    return helper.make_tensor_value_info(name, KINDS[dtype], shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    held: Mapping[str, Any],
    opset: int = 17,
) -> Any:
    """A model; ``held`` are its initializers by name."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        list(inputs),
        list(outputs),
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def linear(weight: Any, rows: Any = "rows", dtype: str = "float32") -> Any:
    """``y = x @ w``."""
    weight = np.asarray(weight, dtype)
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="multiply")],
        [value("x", [rows, weight.shape[0]], dtype)],
        [value("y", [rows, weight.shape[1]], dtype)],
        {"w": weight},
    )


def held(proto: Any) -> Mapping[str, Any]:
    """Initializers of a model by name."""
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}

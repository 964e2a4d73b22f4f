"""The same networks as ONNX graphs. Names and axes are those of PyTorch, as in an exported file."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import unified_ipu as ui

NAMES: Dict[str, Any] = {"mlp": None, "convnet": None}

Shapes = Dict[str, Tuple[int, ...]]


def build(model: str, dtype: str) -> ModelProto:
    """Make ``"mlp"`` or ``"convnet"`` in ``"float32"`` or ``"float64"``."""
    return mlp(dtype) if model == "mlp" else convnet(dtype)


def mlp(dtype: str) -> ModelProto:
    """Two hidden layers on flattened digits."""
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        *_dense("fc1", "flat", "h1"),
        helper.make_node("Tanh", ["h1"], ["a1"]),
        *_dense("fc2", "a1", "h2"),
        helper.make_node("Tanh", ["h2"], ["a2"]),
        *_dense("fc3", "a2", "logits"),
    ]
    shapes: Shapes = {
        "fc1.weight": (128, 784),
        "fc1.bias": (128,),
        "fc2.weight": (64, 128),
        "fc2.bias": (64,),
        "fc3.weight": (10, 64),
        "fc3.bias": (10,),
    }
    return _model(nodes, shapes, dtype)


def convnet(dtype: str) -> ModelProto:
    """Two convolutions and two dense layers."""
    nodes = [
        *_convolution("conv1", "images", "c1"),
        *_swish("c1", "s1"),
        *_average("s1", "p1"),
        *_convolution("conv2", "p1", "c2"),
        *_swish("c2", "s2"),
        *_average("s2", "p2"),
        helper.make_node("Flatten", ["p2"], ["flat"]),
        *_dense("fc1", "flat", "h1"),
        *_swish("h1", "a1"),
        *_dense("fc2", "a1", "logits"),
    ]
    shapes: Shapes = {
        "conv1.weight": (8, 1, 5, 5),
        "conv1.bias": (8,),
        "conv2.weight": (16, 8, 5, 5),
        "conv2.bias": (16,),
        "fc1.weight": (64, 784),
        "fc1.bias": (64,),
        "fc2.weight": (10, 64),
        "fc2.bias": (10,),
    }
    return _model(nodes, shapes, dtype)


def loss() -> Any:
    """Cross entropy of the logits, a mean over samples."""
    return ui.losses.softmax_cross_entropy()


def _dense(name: str, source: str, target: str) -> List[NodeProto]:
    inputs = [source, f"{name}.weight", f"{name}.bias"]
    return [helper.make_node("Gemm", inputs, [target], transB=1)]


def _convolution(name: str, source: str, target: str) -> List[NodeProto]:
    inputs = [source, f"{name}.weight", f"{name}.bias"]
    return [helper.make_node("Conv", inputs, [target], kernel_shape=[5, 5], pads=[2, 2, 2, 2])]


def _swish(source: str, target: str) -> List[NodeProto]:
    gate = f"{source}.gate"
    return [
        helper.make_node("Sigmoid", [source], [gate]),
        helper.make_node("Mul", [source, gate], [target]),
    ]


def _average(source: str, target: str) -> List[NodeProto]:
    return [
        helper.make_node("AveragePool", [source], [target], kernel_shape=[2, 2], strides=[2, 2])
    ]


def _model(nodes: Sequence[NodeProto], shapes: Shapes, dtype: str) -> ModelProto:
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.DOUBLE
    graph = helper.make_graph(
        list(nodes),
        "network",
        [helper.make_tensor_value_info("images", kind, ["n", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", kind, ["n", 10])],
        [numpy_helper.from_array(np.zeros(shape, dtype), name) for name, shape in shapes.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

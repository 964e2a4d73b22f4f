"""Small graphs for the tests of the compiler, written out node by node."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node


def info(name, shape=(), kind=TensorProto.FLOAT):
    """A typed input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def held(**arrays):
    """Initializers by name, of the type of each array; lists are float32."""
    return [
        numpy_helper.from_array(
            value if isinstance(value, np.ndarray) else np.asarray(value, np.float32), name
        )
        for name, value in arrays.items()
    ]


def model(nodes, inputs, outputs, initializers=(), *, opset=13, domains=(), functions=(), **rest):
    """A model; a name alone stands for a float32 matrix, other inputs are made by ``info``."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [info(i, ["N", "M"]) if isinstance(i, str) else i for i in inputs],
        [info(o, ["N", "M"]) if isinstance(o, str) else o for o in outputs],
        list(initializers),
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    made = helper.make_model(graph, opset_imports=imports, functions=functions)
    made.ir_version = rest.pop("ir_version", 8)
    assert not rest
    return made


def branch(nodes, outputs, inputs=()):
    """A branch or loop body; a name alone stands for a float32 matrix."""
    return helper.make_graph(
        nodes,
        "inner",
        [info(i, ["N", "M"]) if isinstance(i, str) else i for i in inputs],
        [info(o, ["N", "M"]) if isinstance(o, str) else o for o in outputs],
    )


def checked(made):
    """The model, after the checker of onnx has read it."""
    onnx.checker.check_model(made)
    return made


def gradients(module):
    """Gradients by the name of the parameter, as lists; those that have none are left out."""
    return {name: p.grad.tolist() for name, p in module.named_parameters() if p.grad is not None}

"""Nodes that only the reference evaluator of ONNX computes: numpy, slow, without gradients."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
import torch
from onnx import NodeProto, TensorProto, numpy_helper

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.tensors import to_torch

# Needs a package that need not be there, and says so only when it runs.
_LEFT_OUT = frozenset({"ImageDecoder"})


def by_reference(proto: NodeProto, node: Node) -> Optional[Callable[..., Any]]:
    """Return a function that gives one node to the reference evaluator, or None.

    Args:
        proto: With its attributes resolved, and without inner graphs.
        node: What is known of it.
    """
    if proto.op_type in _LEFT_OUT:
        return None
    from onnx.reference import ReferenceEvaluator  # some 400 modules, for the graphs that need it

    plain = NodeProto()
    plain.CopyFrom(proto)
    given = [f"in{index}" if there else "" for index, there in enumerate(node.inputs)]
    wanted = [f"out{index}" if there else "" for index, there in enumerate(node.outputs)]
    plain.input[:], plain.output[:] = given, wanted
    try:
        evaluator: Any = ReferenceEvaluator(plain, opsets={node.domain: node.opset})
    except (NotImplementedError, RuntimeError, KeyError, TypeError, ValueError):
        return None  # it has not that operator, or not in that operator set

    def run(*inputs: Optional[torch.Tensor]) -> Any:
        device = node.mode.device
        feeds = {name: array_of(value) for name, value in zip(given, inputs) if value is not None}
        found = iter(evaluator.run([name for name in wanted if name], feeds))
        results = [tensor_of(next(found)).to(device) if name else None for name in wanted]
        return results[0] if len(results) == 1 else tuple(results)

    return run


def array_of(tensor: torch.Tensor) -> Any:
    """Numpy array of a tensor, bfloat16 in the type that onnx has for it."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    proto = TensorProto(data_type=TensorProto.BFLOAT16, dims=tensor.shape)
    proto.raw_data = tensor.view(torch.int16).numpy().tobytes()
    return numpy_helper.to_array(proto)


def tensor_of(array: Any) -> torch.Tensor:
    """Tensor of what the evaluator returns."""
    return to_torch(numpy_helper.from_array(np.asarray(array)))

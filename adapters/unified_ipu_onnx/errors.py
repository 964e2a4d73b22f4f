"""Errors of nodes that cannot run, and the name under which this adapter raises errors."""

from __future__ import annotations

from typing import Sequence

from unified_ipu.errors import DataError, UnifiedIpuError

NAME = "onnx"

# What the torch adapter tells from them: the machine's fault or the plan's, and not the node's.
_NOT_THE_NODE = ("out of memory", "can't allocate memory", "deterministic implementation")


def of_node(error: Exception, label: str, op_type: str, inputs: Sequence[object]) -> Exception:
    """Error to raise in the place of what an operator raised; some pass as they are.

    Args:
        error: What was raised.
        label: Of the node.
        op_type: Of the node.
        inputs: Of the node, of which the shapes are told.

    Returns:
        A ``DataError`` with the attributes ``label`` and ``op_type``, or ``error``.
    """
    text = str(error)
    if isinstance(error, (UnifiedIpuError, MemoryError)) or any(t in text for t in _NOT_THE_NODE):
        return error
    shapes = [list(getattr(value, "shape", ())) for value in inputs if value is not None]
    told = DataError(
        f"node {label!r} ({op_type}): {text or type(error).__name__}; its inputs have shapes "
        f"{shapes}"
    )
    vars(told).update(label=label, op_type=op_type)  # for who looks for the node
    return told

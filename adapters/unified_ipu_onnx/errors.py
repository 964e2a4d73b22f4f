"""The error of a node that cannot run, and the name under which this adapter raises errors."""

from __future__ import annotations

from typing import Sequence

from unified_ipu.errors import DataError, UnifiedIpuError

NAME = "onnx"

# What the torch adapter tells from them: the machine's fault or the plan's, and not the node's.
_NOT_THE_NODE = ("out of memory", "can't allocate memory", "deterministic implementation")


class NodeError(DataError):
    """A node of the graph cannot compute what it is given, as with shapes that do not fit.

    Attributes:
        label: The node.
        op_type: Its operator.
        message: What torch says of it, and the shapes of the node's inputs.
    """

    def __init__(self, label: str, op_type: str, message: str) -> None:
        super().__init__(label, op_type, message)
        self.label = label
        self.op_type = op_type
        self.message = message

    def __str__(self) -> str:
        text = f"node {self.label!r} ({self.op_type}): {self.message}"
        return text if self.rank is None else f"rank {self.rank}: {text}"


def of_node(error: Exception, label: str, op_type: str, inputs: Sequence[object]) -> Exception:
    """Error to raise in the place of what an operator raised; some pass as they are.

    Args:
        error: What was raised.
        label: Of the node.
        op_type: Of the node.
        inputs: Of the node, of which the shapes are told.
    """
    text = str(error)
    if isinstance(error, (UnifiedIpuError, MemoryError)) or any(t in text for t in _NOT_THE_NODE):
        return error
    shapes = [list(getattr(value, "shape", ())) for value in inputs if value is not None]
    return NodeError(
        label, op_type, f"{text or type(error).__name__}; its inputs have shapes {shapes}"
    )

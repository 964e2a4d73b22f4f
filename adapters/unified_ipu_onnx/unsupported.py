"""Nodes that cannot be computed, and the error that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.errors import NAME


@dataclass(frozen=True)
class Unsupported:
    """A node that no operator of ours, no function and no schema body computes."""

    label: str
    op_type: str
    domain: str
    opset: int
    reason: str = ""

    def __str__(self) -> str:
        domain = self.domain or "ai.onnx"
        place = f"node {self.label!r}, domain {domain}, operator set {self.opset}"
        return f"{self.op_type} ({place})" + (f": {self.reason}" if self.reason else "")


def check_supported(unsupported: Sequence[Unsupported]) -> None:
    """Refuse a graph with nodes that cannot be computed.

    Raises:
        CapabilityError: If there are any; it lists them all.
    """
    if unsupported:
        listed = "; ".join(str(node) for node in unsupported)
        raise CapabilityError(
            NAME,
            f"{len(unsupported)} node(s) of the graph are not supported: {listed}. Export the "
            "model without them, or with another operator set",
        )

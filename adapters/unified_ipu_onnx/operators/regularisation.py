"""Dropout."""

from __future__ import annotations

from typing import Any, List, Optional

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator


def dropout(node: Node) -> Function:
    """Drop with a probability and scale up the rest, when the module is training.

    ``seed`` and the training flag of the file are not followed: masks are keyed by the plan's seed.
    """
    fixed = node.number("ratio", 0.5)
    mode, wants_mask = node.mode, len(node.outputs) > 1

    def run(
        x: torch.Tensor,
        ratio: Optional[List[float]] = None,
        training: Optional[List[bool]] = None,
    ) -> Any:
        del training
        probability = ratio[0] if ratio else fixed
        if not mode.training or probability == 0.0:
            return (x, torch.ones_like(x, dtype=torch.bool)) if wants_mask else x
        if not wants_mask:
            return torch.dropout(x, probability, True)
        return torch.native_dropout(x, probability, True)

    return run


OPERATORS = (Operator("Dropout", 1, dropout, ints=(1, 2), draws=True),)

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
    booleans = node.opset >= 10  # before, a mask had the type of the input

    def run(
        x: torch.Tensor,
        ratio: Optional[List[float]] = None,
        training: Optional[List[bool]] = None,
    ) -> Any:
        del training
        probability = ratio[0] if ratio else fixed
        drops = mode.training and probability > 0.0
        if not wants_mask:
            return torch.dropout(x, probability, True) if drops else x
        if drops:
            x, mask = torch.native_dropout(x, probability, True)
        else:
            mask = torch.ones_like(x, dtype=torch.bool)
        return x, mask if booleans else mask.to(x.dtype)

    return run


OPERATORS = (Operator("Dropout", 1, dropout, ints=(1, 2), draws=True),)

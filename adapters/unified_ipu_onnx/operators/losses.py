"""Losses that are operators of a graph."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator

_NO_TARGET = -100  # ignored by torch unless told otherwise, and no class


def negative_log_likelihood(node: Node) -> Function:
    """Of log-probabilities ``[N, C, ...]``; the mean divides by the weights of what it counts."""
    reduction, ignored = node.text("reduction", "mean"), node.integer("ignore_index", _NO_TARGET)

    def run(
        scores: torch.Tensor, target: torch.Tensor, weight: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        return functional.nll_loss(
            scores, target.long(), weight, ignore_index=ignored, reduction=reduction
        )

    return run


def softmax_cross_entropy(node: Node) -> Function:
    """Of scores ``[N, C, ...]``; with their log-probabilities, if those are asked for."""
    likelihood = negative_log_likelihood(node)
    wants_log_prob = len(node.outputs) > 1

    def run(
        scores: torch.Tensor, target: torch.Tensor, weight: Optional[torch.Tensor] = None
    ) -> Any:
        log_prob = torch.log_softmax(scores, 1)
        loss = likelihood(log_prob, target, weight)
        return (loss, log_prob) if wants_log_prob else loss

    return run


OPERATORS = (
    Operator("NegativeLogLikelihoodLoss", 12, negative_log_likelihood),
    Operator("SoftmaxCrossEntropyLoss", 12, softmax_cross_entropy),
)

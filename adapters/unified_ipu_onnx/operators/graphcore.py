"""Operators of PopART's own domain: its losses, and what leaves values as they are.

Source: PopART of SDK 3.4, ``willow/src/op/{nll,l1,identity}.cpp`` and ``popx/op/nllx.cpp``.
"""

from __future__ import annotations

from typing import Any

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator

DOMAIN = "ai.graphcore"
_SMALLEST = {torch.float16: 6.104e-5}
_SMALLEST_ELSE = 1e-7
_REDUCTIONS = ("Sum", "Mean", "None")


def negative_log_likelihood(node: Node) -> Function:
    """Of probabilities ``[..., C]`` and labels ``[...]``, or of their logarithms.

    Raises:
        CapabilityError: For an unknown reduction.
    """
    reduction = _reduction(node)
    ignored = node.integer("ignoreIndex") if node.has("ignoreIndex") else None
    is_log = bool(node.integer("inputIsLogProbability", 0))

    def run(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        counts = torch.ones_like(labels, dtype=torch.bool)
        if ignored is not None:
            counts = labels != ignored
        classes = torch.where(counts, labels, torch.zeros_like(labels)).long()
        chosen = scores.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
        losses = -(chosen if is_log else torch.log(_at_least(chosen)))
        losses = torch.where(counts, losses, torch.zeros_like(losses))
        if reduction == "Mean":
            return losses.sum() / counts.sum().clamp(min=1)
        return losses.sum() if reduction == "Sum" else losses

    return run


def _at_least(probability: torch.Tensor) -> torch.Tensor:
    """The larger of p and a small number; its gradient passes everywhere, as PopART's does."""
    smallest = _SMALLEST.get(probability.dtype, _SMALLEST_ELSE)
    return probability + (probability.clamp(min=smallest) - probability).detach()


def absolute(node: Node) -> Function:
    """Absolute values times ``lambda``, reduced.

    Raises:
        CapabilityError: For an unknown reduction.
    """
    factor, reduced = node.number("lambda", 1.0), _reducing(node)
    return lambda value: reduced(factor * value.abs())


def identity_loss(node: Node) -> Function:
    """Values, reduced.

    Raises:
        CapabilityError: For an unknown reduction.
    """
    return _reducing(node)


def scale(node: Node) -> Function:
    """Values times a constant."""
    factor = node.number("scale", 1.0)
    return lambda value: value * factor


def detach(node: Node) -> Function:
    """Values without gradient."""
    del node
    return lambda value: value.detach()


def nop(node: Node) -> Function:
    """Values as they are."""
    del node
    return lambda value: value.view_as(value)


def _reducing(node: Node) -> Function:
    reduction = _reduction(node)

    def run(value: torch.Tensor) -> Any:
        if reduction == "None":
            return value.view_as(value)
        return value.sum() if reduction == "Sum" else value.mean()

    return run


def _reduction(node: Node) -> str:
    reduction = node.text("reduction", "Mean")
    if reduction not in _REDUCTIONS:
        raise node.lacks(f"reduction {reduction!r}; PopART has {', '.join(_REDUCTIONS)}")
    return reduction


OPERATORS = (
    Operator("Detach", 1, detach, domain=DOMAIN),
    Operator("IdentityLoss", 1, identity_loss, domain=DOMAIN),
    Operator("L1", 1, absolute, domain=DOMAIN),
    Operator("Nll", 1, negative_log_likelihood, domain=DOMAIN),
    Operator("Nop", 1, nop, domain=DOMAIN),
    Operator("Scale", 1, scale, domain=DOMAIN),
)

"""Numbers drawn at random, by torch's generator: ``seed`` of a node is not read.

A seed in the file would give every micro-batch the same numbers, or numbers that depend on which
process came first; torch's generator is seeded for each micro-batch by who runs the module.
"""

from __future__ import annotations

from typing import Callable, List

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator
from unified_ipu_onnx.tensors import torch_dtype

Fill = Callable[[torch.Tensor], torch.Tensor]


def normal(node: Node) -> Fill:
    """Fill with normal numbers of the node's mean and deviation."""
    mean, scale = node.number("mean"), node.number("scale", 1.0)
    return lambda x: x.normal_(mean, scale)


def uniform(node: Node) -> Fill:
    """Fill with numbers between the node's bounds."""
    low, high = node.number("low"), node.number("high", 1.0)
    return lambda x: x.uniform_(low, high)


def drawn(kind: Callable[[Node], Fill]) -> Callable[[Node], Function]:
    """Builder of a tensor of the shape of the attribute."""

    def build(node: Node) -> Function:
        fill, shape = kind(node), node.integers("shape")
        dtype = torch_dtype(node.integer("dtype", 1))
        return lambda: fill(torch.empty(shape, dtype=dtype, device=node.mode.device))

    return build


def drawn_like(kind: Callable[[Node], Fill]) -> Callable[[Node], Function]:
    """Builder of a tensor of the shape of the input."""

    def build(node: Node) -> Function:
        fill, dtype = kind(node), _dtype(node)
        return lambda x: fill(torch.empty_like(x, dtype=dtype[0] if dtype else x.dtype))

    return build


def bernoulli(node: Node) -> Function:
    """1 with the probability that the input says, else 0."""
    dtype = _dtype(node)

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x.detach()).to(dtype[0] if dtype else x.dtype)

    return run


def multinomial(node: Node) -> Function:
    """Classes drawn with the log probabilities of each row, with replacement."""
    size, dtype = node.integer("sample_size", 1), torch_dtype(node.integer("dtype", 6))

    def run(x: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(x.detach().float(), -1)
        return torch.multinomial(shares, size, replacement=True).to(dtype)

    return run


def _dtype(node: Node) -> List[torch.dtype]:
    return [torch_dtype(node.integer("dtype"))] if node.has("dtype") else []


OPERATORS = (
    Operator("Bernoulli", 15, bernoulli, draws=True),
    Operator("Multinomial", 7, multinomial, draws=True),
    Operator("RandomNormal", 1, drawn(normal), draws=True),
    Operator("RandomNormalLike", 1, drawn_like(normal), draws=True),
    Operator("RandomUniform", 1, drawn(uniform), draws=True),
    Operator("RandomUniformLike", 1, drawn_like(uniform), draws=True),
)

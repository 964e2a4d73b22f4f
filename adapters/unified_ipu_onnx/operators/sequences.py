"""Sequences of tensors, which are Python lists, and optional values, which are None if absent."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator

Tensors = List[torch.Tensor]


def construct(node: Node) -> Function:
    """Of the inputs."""
    del node
    return lambda *items: list(items)


def empty(node: Node) -> Function:
    """Without elements."""
    del node
    return list


def at(node: Node) -> Function:
    """One element; negative places count from the end."""
    del node
    return lambda items, place: items[int(place[0])]


def insert(node: Node) -> Function:
    """With one element more, before a place or at the end."""
    del node

    def run(items: Tensors, item: torch.Tensor, place: Optional[Sequence[int]] = None) -> Tensors:
        where = len(items) if place is None else int(place[0])
        where = where + len(items) if where < 0 else where
        return [*items[:where], item, *items[where:]]

    return run


def erase(node: Node) -> Function:
    """With one element less, at a place or at the end."""
    del node

    def run(items: Tensors, place: Optional[Sequence[int]] = None) -> Tensors:
        where = (-1 if place is None else int(place[0])) % len(items)
        return [*items[:where], *items[where + 1 :]]

    return run


def length(node: Node) -> Function:
    """Count of elements."""
    return lambda items: torch.tensor(len(items), device=node.mode.device)


def concat_from(node: Node) -> Function:
    """Join the elements along an axis, or along a new one."""
    axis, is_new = node.integer("axis"), bool(node.integer("new_axis"))
    return lambda items: torch.stack(items, axis) if is_new else torch.cat(items, axis)


def split_to(node: Node) -> Function:
    """Cut an axis into parts of a size, of given sizes, or of single elements."""
    axis, keeps = node.integer("axis"), bool(node.integer("keepdims", 1))

    def run(x: torch.Tensor, sizes: Optional[torch.Tensor] = None) -> Tensors:
        if sizes is None:
            parts = list(torch.split(x, 1, axis))
            return parts if keeps else [part.squeeze(axis) for part in parts]
        numbers: Any = sizes.tolist()  # one number is a size, a list of one is a part
        return list(torch.split(x, numbers, axis))

    return run


def optional(node: Node) -> Function:
    """Give what is given; None if there is nothing."""
    del node
    return lambda value=None: value


def has_element(node: Node) -> Function:
    """Whether there is a value."""
    return lambda value=None: torch.tensor(value is not None, device=node.mode.device)


def get_element(node: Node) -> Function:
    """Value that is there."""

    def run(value: Any = None) -> Any:
        if value is None:
            raise node.refuse("the optional value is empty; ask OptionalHasElement before")
        return value

    return run


OPERATORS = (
    Operator("ConcatFromSequence", 11, concat_from),
    Operator("Optional", 15, optional),
    Operator("OptionalGetElement", 15, get_element),
    Operator("OptionalHasElement", 15, has_element),
    Operator("SequenceAt", 11, at, ints=(1,)),
    Operator("SequenceConstruct", 11, construct),
    Operator("SequenceEmpty", 11, empty),
    Operator("SequenceErase", 11, erase, ints=(1,)),
    Operator("SequenceInsert", 11, insert, ints=(2,)),
    Operator("SequenceLength", 11, length),
    Operator("SplitToSequence", 11, split_to),
)

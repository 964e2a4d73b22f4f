"""The rows of a call as one tree, in the order in which a device cuts it up again."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np

from unified_ipu.adapter.contract import Tree
from unified_ipu.errors import DataError


def host_batch(trees: Sequence[Tree]) -> Tree:
    """Put the rows of micro-batches behind each other.

    Args:
        trees: At least one, of one form; leaves are anything numpy can view.

    Returns:
        A tree of the same form, numpy leaves with the rows of all.

    Raises:
        DataError: If the trees have not one form.
    """
    first = trees[0]
    if isinstance(first, dict):
        if any(not isinstance(tree, dict) or tree.keys() != first.keys() for tree in trees):
            raise DataError(f"micro-batches of one call differ in their keys: {list(first)} first")
        return {key: host_batch([tree[key] for tree in trees]) for key in first}
    if isinstance(first, (tuple, list)):
        if any(not isinstance(tree, type(first)) or len(tree) != len(first) for tree in trees):
            raise DataError(f"micro-batches of one call are not all of {len(first)} parts")
        parts = [host_batch(list(each)) for each in zip(*trees)]
        if hasattr(first, "_fields"):
            return type(first)(*parts)
        return parts if isinstance(first, list) else tuple(parts)
    return _joined([np.asarray(leaf) for leaf in trees])


def _joined(leaves: List[Any]) -> Any:
    shape, dtype = leaves[0].shape[1:], leaves[0].dtype
    for leaf in leaves:
        if leaf.shape[1:] != shape or leaf.dtype != dtype:
            raise DataError(
                f"micro-batches of one call differ: rows of {dtype} {list(shape)} and of "
                f"{leaf.dtype} {list(leaf.shape[1:])}; shapes are static on this target"
            )
    return np.concatenate(leaves)

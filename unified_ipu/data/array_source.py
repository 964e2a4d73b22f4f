"""Samples that lie in memory (or in a memory map) as arrays."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np

from unified_ipu.data.leaves import as_array, map_leaves
from unified_ipu.data.source import Tree
from unified_ipu.errors import DataError


class ArraySource:
    """Rows of a tree of arrays; batches are copies, so a read-only memory map is safe.

    Args:
        tree: Arrays (or anything numpy reads) that share axis 0, in dicts, tuples and lists.

    Raises:
        DataError: If a leaf is no array of numbers or the sizes differ.
    """

    def __init__(self, tree: Tree) -> None:
        first: Tuple[str, int] = ("", -1)

        def checked(path: str, leaf: Any) -> np.ndarray:
            nonlocal first
            array = as_array(leaf, path, "arrays")
            if array.ndim == 0:
                raise DataError(
                    f"arrays: leaf {path} is a single {array.dtype}; every leaf needs one row a "
                    "sample on axis 0; turn a list of numbers into one array with numpy.asarray"
                )
            if first[1] < 0:
                first = (path, len(array))
            if len(array) != first[1]:
                raise DataError(
                    f"arrays: leaf {first[0]} has {first[1]} rows but leaf {path} has "
                    f"{len(array)}; all leaves need one row a sample on axis 0"
                )
            return array

        self._tree = map_leaves(tree, checked)
        self._size = first[1]
        if self._size < 0:
            raise DataError("arrays: there is no array in what was given; pass at least one")

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._size

    def fetch(self, ids: np.ndarray) -> Tree:
        """Return copies of the rows ``ids`` ``[n]``."""
        return map_leaves(self._tree, lambda _, array: np.ascontiguousarray(array[ids]))


def arrays(*trees: Any) -> ArraySource:
    """Samples from arrays: ``arrays(x, y)`` gives ``(x, y)`` batches, ``arrays(tree)`` that tree.

    Args:
        *trees: Numpy arrays, CPU tensors, or dicts, tuples and lists of them.

    Returns:
        A source of as many samples as there are rows.

    Raises:
        DataError: If a leaf is no array of numbers or the sizes differ.
    """
    return ArraySource(trees[0] if len(trees) == 1 else trees)

"""Leaves of batches as numpy arrays: which element types there are, and how to say no."""

from __future__ import annotations

from typing import Any, Callable, List

import numpy as np

from unified_ipu.errors import DataError

_KINDS = "biufc"  # bool, signed, unsigned, float, complex


def map_leaves(tree: Any, function: Callable[[str, Any], Any], path: str = "") -> Any:
    """Rebuild ``tree`` with ``function(path, leaf)`` at each leaf; paths read ``[0]['a']``."""
    if isinstance(tree, dict):
        return {key: map_leaves(tree[key], function, f"{path}[{key!r}]") for key in tree}
    if isinstance(tree, (tuple, list)):
        children = [map_leaves(child, function, f"{path}[{k}]") for k, child in enumerate(tree)]
        if isinstance(tree, list):
            return children
        fields = getattr(tree, "_fields", None)
        return tuple(children) if fields is None else type(tree)(*children)
    return function(path, tree)


def leaf_values(tree: Any) -> List[Any]:
    """Leaves of ``tree`` in order, without their paths."""
    values: List[Any] = []
    map_leaves(tree, lambda _, leaf: values.append(leaf))
    return values


def as_array(leaf: Any, path: str, where: str) -> np.ndarray:
    """View a leaf as a numpy array of numbers, without a copy where that is possible.

    Args:
        leaf: An array, a tensor on the CPU, or a number.
        path: Of the leaf in its tree.
        where: Which source, for the message.

    Returns:
        A plain array of bools or numbers in the machine's byte order.

    Raises:
        DataError: If the leaf is no array of numbers.
    """
    try:
        array = np.asarray(leaf)
    except Exception as error:
        raise DataError(
            f"{where}: {_named(path)} is a {_type_name(leaf)} that numpy cannot read ({error}); "
            "convert it to a numpy array of numbers first"
        ) from error
    if array.dtype.kind not in _KINDS:
        raise DataError(
            f"{where}: {_named(path)} has the element type {array.dtype} ({_type_name(leaf)}); "
            "batches hold bools and numbers only: encode it as integers, or leave it out"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _named(path: str) -> str:
    return f"leaf {path}" if path else "the sample"


def _type_name(leaf: Any) -> str:
    return f"{type(leaf).__module__}.{type(leaf).__qualname__}".replace("builtins.", "")

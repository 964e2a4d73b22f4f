"""From batches to the arrays that a graph is fed with."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import MicroBatch, Tree, split_batch
from unified_ipu.errors import ConfigError, DataError

Arrays = Dict[str, np.ndarray]


def graph_feeds(tree: Tree, dtypes: Mapping[str, np.dtype]) -> Arrays:
    """The inputs of a graph: by name, in order, or the only one.

    Args:
        tree: A dict, a tuple or list, or one array.
        dtypes: Of each input, in order.

    Raises:
        ConfigError: If they are not those of the graph.
        DataError: If a value does not fit the type of its input.
    """
    names = list(dtypes)
    if isinstance(tree, dict):
        given = dict(tree)
    else:
        parts = list(tree) if isinstance(tree, (tuple, list)) else [tree]
        if len(parts) > len(names):
            raise ConfigError(f"the graph has the inputs {names}, got {len(parts)} by position")
        given = dict(zip(names, parts))
    if set(given) != set(names):
        raise ConfigError(f"the graph has the inputs {names}, got {sorted(given)}; give each once")
    return {name: cast(name, given[name], dtypes[name]) for name in names}


def targets_of(micro: MicroBatch, dtype: np.dtype) -> np.ndarray:
    """The targets of a batch."""
    _, targets, _ = split_batch(micro.tree)
    return cast("the targets", targets, dtype)


def cast(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    """An array of the type that a device takes.

    Raises:
        DataError: If numbers would change.
    """
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    is_integer = dtype.kind in "iu"
    if array.dtype.kind not in "biuf" or (is_integer and array.dtype.kind == "f"):
        raise DataError(f"{name}: a device takes {dtype} here, got {array.dtype}")
    if is_integer and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise DataError(f"{name}: {array.dtype} values do not fit {dtype}, which a device has")
    return array.astype(dtype)


def joined(feeds: Sequence[Arrays]) -> Arrays:
    """Micro-batches behind each other, in the order in which a device consumes them.

    Every array is contiguous, as PopART asks: ``np.stack`` keeps the order of what is not.
    """
    return {
        name: np.stack([np.ascontiguousarray(feed[name]) for feed in feeds]) for name in feeds[0]
    }


def shapes_of(feeds: Arrays) -> Dict[str, Tuple[int, ...]]:
    """Shape of each array."""
    return {name: tuple(array.shape) for name, array in feeds.items()}


def signature(shapes: Mapping[str, Tuple[int, ...]]) -> Tuple[Any, ...]:
    """A key of shapes."""
    found: List[Any] = sorted(shapes.items())
    return tuple(found)

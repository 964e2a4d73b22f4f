"""Trees of arrays: dicts, tuples and lists whose leaves share axis 0."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Tuple

from unified_ipu.errors import DataError


def leaves(tree: Any, path: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield ``(path, leaf)`` in a fixed order; the path reads like ``x[0]["mask"]``."""
    if isinstance(tree, dict):
        for key in tree:
            yield from leaves(tree[key], f"{path}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, child in enumerate(tree):
            yield from leaves(child, f"{path}[{index}]")
    else:
        yield path, tree


def map_tree(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Apply ``function`` to every leaf; containers become plain dicts, tuples and lists."""
    if isinstance(tree, dict):
        return {key: map_tree(child, function) for key, child in tree.items()}
    if isinstance(tree, list):
        return [map_tree(child, function) for child in tree]
    if isinstance(tree, tuple):
        children = [map_tree(child, function) for child in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else tuple(children)
    return function(tree)


def rows(tree: Any) -> int:
    """Number of rows, the size of axis 0 that all leaves share.

    Raises:
        DataError: If there is no leaf, a leaf has no axis 0, or two differ.
    """
    if type(tree) is tuple and len(tree) == 2:  # noqa: PLR2004  (x, y): nearly always
        x, y = getattr(tree[0], "shape", ()), getattr(tree[1], "shape", ())
        if x and y and x[0] == y[0]:
            return int(x[0])
    count, first = -1, ""
    for path, leaf in leaves(tree, "batch"):
        shape = getattr(leaf, "shape", None)
        if shape is None or len(shape) == 0:
            raise DataError(
                f"{path} is a {type(leaf).__name__} without an axis of rows; every leaf of a batch "
                "needs one row a sample on axis 0"
            )
        if count < 0:
            count, first = int(shape[0]), path
        elif int(shape[0]) != count:
            raise DataError(
                f"{first} has {count} rows but {path} has {int(shape[0])}; all leaves of a batch "
                "need the same number of rows"
            )
    if count < 0:
        raise DataError("the batch has no array in it; expected (x, y) or a tree of arrays")
    return count


def split_batch(tree: Any) -> Tuple[Any, Any, Optional[Any]]:
    """Take ``(x, y)`` or ``(x, y, sample_weight)`` apart.

    Raises:
        DataError: If the batch is no such pair or triple.
    """
    if isinstance(tree, (tuple, list)) and len(tree) in {2, 3}:
        return tree[0], tree[1], tree[2] if len(tree) == 3 else None  # noqa: PLR2004 a triple
    what = f"{type(tree).__name__} of {len(tree)}" if hasattr(tree, "__len__") else type(tree)
    raise DataError(
        f"loss= needs batches (x, y) or (x, y, sample_weight), got a {what}; return a pair from "
        "the pipeline, or pass objective=, which gets the batch whole"
    )


def inputs_of(tree: Any) -> Any:
    """Return x of ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, or the whole batch."""
    if isinstance(tree, (tuple, list)) and len(tree) in {1, 2, 3}:
        return tree[0]
    return tree

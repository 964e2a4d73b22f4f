"""Where the leaves of a batch lie in a slot of shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from unified_ipu.data.leaves import map_leaves
from unified_ipu.data.source import Tree
from unified_ipu.errors import DataError

_LINE = 64  # bytes; frameworks want aligned imports


@dataclass(frozen=True)
class Layout:
    """Element types, shapes and offsets of the arrays in a slot, and the tree they form.

    Args:
        dtypes: In numpy's notation, e.g. ``"<f4"``.
        shapes: Rows included.
        offsets: In bytes, each on a 64-byte line.
        num_bytes: Of the whole slot.
        form: The tree in JSON values, leaves by number; see ``form_of``.
    """

    dtypes: Tuple[str, ...]
    shapes: Tuple[Tuple[int, ...], ...]
    offsets: Tuple[int, ...]
    num_bytes: int
    form: Any
    _pieces: Tuple[Tuple[Tuple[int, ...], Any, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kinds = [np.dtype(dtype) for dtype in self.dtypes]
        object.__setattr__(self, "_pieces", tuple(zip(self.shapes, kinds, self.offsets)))

    @classmethod
    def of(cls, dtypes: Sequence[str], shapes: Sequence[Tuple[int, ...]], form: Any) -> Layout:
        """Lay the arrays one behind the other."""
        offsets: List[int] = []
        end = 0
        for dtype, shape in zip(dtypes, shapes):
            offsets.append(end)
            num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            end += -(-num_bytes // _LINE) * _LINE
        return cls(tuple(dtypes), tuple(shapes), tuple(offsets), max(end, _LINE), form)

    def to_payload(self) -> Dict[str, Any]:
        """JSON values that ``from_payload`` reads."""
        return {"dtypes": self.dtypes, "shapes": self.shapes, "form": self.form}

    @classmethod
    def from_payload(cls, payload: Dict[str, Any]) -> Layout:
        """The layout behind what ``to_payload`` returned."""
        shapes = [tuple(shape) for shape in payload["shapes"]]
        return cls.of(payload["dtypes"], shapes, payload["form"])

    def views(self, slot: np.ndarray) -> List[np.ndarray]:
        """The arrays inside ``slot``, uint8 ``[num_bytes or more]``; views, no copies."""
        return [np.ndarray(shape, kind, slot, offset) for shape, kind, offset in self._pieces]


def form_of(tree: Tree) -> Any:
    """Describe a tree in JSON values: leaves are numbers, in the order of ``map_leaves``.

    Raises:
        DataError: If a dict has a key that is no string.
    """
    count = -1

    def walk(node: Any, path: str) -> Any:
        nonlocal count
        if isinstance(node, dict):
            for key in node:
                if not isinstance(key, str):
                    raise DataError(f"{path}[{key!r}]: keys of a batch must be strings")
            return {"dict": [[key, walk(node[key], f"{path}[{key!r}]")] for key in node]}
        if isinstance(node, (tuple, list)):
            kind = "tuple" if isinstance(node, tuple) else "list"
            return {kind: [walk(child, f"{path}[{k}]") for k, child in enumerate(node)]}
        count += 1
        return count

    return walk(tree, "batch")


def paths_of(tree: Tree) -> List[str]:
    """Paths of the leaves, in the order of ``map_leaves``."""
    paths: List[str] = []
    map_leaves(tree, lambda path, _: paths.append(path))
    return paths


def tree_of(form: Any, arrays: Sequence[np.ndarray]) -> Tree:
    """Put ``arrays`` into the tree that ``form`` describes."""
    if isinstance(form, int):
        return arrays[form]
    ((kind, children),) = form.items()
    if kind == "dict":
        return {key: tree_of(child, arrays) for key, child in children}
    nodes = [tree_of(child, arrays) for child in children]
    return tuple(nodes) if kind == "tuple" else nodes

"""Outputs of all ranks put together in the order of the samples."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from unified_ipu.adapter import MicroBatch, leaves
from unified_ipu.comms import Communicator
from unified_ipu.errors import ConfigError, DataError

GATHER = ("first", "all", "none")


class Outputs:
    """Collects this rank's outputs, then gathers everybody's.

    Args:
        gather: ``"first"``: rows on rank 0, None elsewhere; ``"all"``: rows on every rank;
            ``"none"``: every rank keeps its own rows, in the order of the samples.

    Raises:
        ConfigError: If ``gather`` is none of these.
    """

    def __init__(self, gather: str) -> None:
        if gather not in GATHER:
            raise ConfigError(f"gather={gather!r}; expected one of {', '.join(GATHER)}")
        self._gather = gather
        self._structure: Any = None
        self._paths: List[str] = []
        self._rows: Dict[str, List[Any]] = {}
        self._ids: List[Any] = []

    def add(self, micro: MicroBatch, tree: Any) -> None:
        """Keep the outputs of one micro-batch; padding rows are cut off.

        Raises:
            DataError: If a leaf does not have one row a sample, or changes its other axes.
        """
        real = micro.rows
        if micro.sample_weight is not None:
            real = int(np.count_nonzero(micro.sample_weight))
        found = list(leaves(tree, "output"))
        if not self._paths:
            self._paths = [path for path, _ in found]
            self._structure = _structure(tree)
        for path, leaf in found:
            array = np.asarray(leaf)
            if array.ndim == 0 or array.shape[0] != micro.rows:
                raise DataError(
                    f"{path} of the model has shape {array.shape} for {micro.rows} samples; "
                    "predict needs one row a sample on axis 0"
                )
            kept = self._rows.setdefault(path, [])
            if kept and kept[0].shape[1:] != array.shape[1:]:
                raise DataError(
                    f"{path} of the model has rows of shape {array.shape[1:]} after rows of shape "
                    f"{kept[0].shape[1:]}; predict needs the same shape in every batch"
                )
            kept.append(np.array(array[:real]))
        ids = micro.ids if micro.ids is not None else np.arange(real)
        self._ids.append(np.asarray(ids, np.int64)[:real])

    def result(self, communicator: Communicator) -> Any:
        """Return the rows as the constructor was told; collective unless ``"none"``.

        Raises:
            DataError: On all ranks, if the ranks' outputs differ in structure or dtype.
        """
        if self._gather == "none" or communicator.size == 1:
            return self._assemble({path: [self._joined(path)] for path in self._paths})
        described = communicator.all_gather_value(self._description())
        first = next((found for found in described if found is not None), None)
        if first is None:
            return None
        for rank, found in enumerate(described):
            if found is not None and found != first:
                raise DataError(
                    f"rank {rank} predicts {found}, the ranks before it {first}; every rank's "
                    "model must return the same structure, row shapes and dtypes"
                )
        parts: Dict[str, List[Any]] = {}
        for path, shape, dtype in first["leaves"]:
            mine = self._joined(path) if self._paths else np.zeros((0, *shape), np.dtype(dtype))
            parts[path] = communicator.all_gather(mine)
        ids = communicator.all_gather(self._joined_ids())
        if self._gather == "first" and communicator.rank != 0:
            return None
        self._structure = self._structure or first["structure"]
        self._paths = [path for path, _, _ in first["leaves"]]
        return self._assemble(parts, np.concatenate(ids))

    def _description(self) -> Optional[Dict[str, Any]]:
        if not self._paths:
            return None
        described: List[Tuple[str, List[int], str]] = []
        for path in self._paths:
            first = self._rows[path][0]
            described.append((path, list(first.shape[1:]), str(first.dtype)))
        return {"structure": self._structure, "leaves": [list(entry) for entry in described]}

    def _joined(self, path: str) -> Any:
        return np.concatenate(self._rows[path])

    def _joined_ids(self) -> Any:
        return np.concatenate(self._ids) if self._ids else np.zeros(0, np.int64)

    def _assemble(self, parts: Dict[str, List[Any]], ids: Optional[Any] = None) -> Any:
        if not self._paths:
            return None
        order = np.argsort(self._joined_ids() if ids is None else ids, kind="stable")
        values = iter([np.concatenate(parts[path])[order] for path in self._paths])
        return _fill(self._structure, values)


def _structure(tree: Any) -> Any:
    """Describe a tree in JSON values: a leaf is None."""
    if isinstance(tree, dict):
        return {"dict": [[key, _structure(tree[key])] for key in tree]}
    if isinstance(tree, (tuple, list)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [_structure(child) for child in tree]}
    return None


def _fill(structure: Any, values: Any) -> Any:
    if structure is None:
        return next(values)
    if "dict" in structure:
        return {key: _fill(child, values) for key, child in structure["dict"]}
    if "tuple" in structure:
        return tuple(_fill(child, values) for child in structure["tuple"])
    return [_fill(child, values) for child in structure["list"]]

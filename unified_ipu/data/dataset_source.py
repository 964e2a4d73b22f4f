"""Samples of a map-style dataset: anything with ``__len__`` and ``__getitem__``."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from unified_ipu.data.leaves import as_array, leaf_values, map_leaves
from unified_ipu.data.source import Tree
from unified_ipu.errors import DataError, UnifiedIpuError

Collate = Callable[[List[Any]], Tree]


class DatasetSource:
    """A map-style dataset, sample by sample.

    Args:
        samples: The dataset.
        collate: Turns a list of samples into one tree of arrays; None stacks their leaves.
    """

    def __init__(self, samples: Any, collate: Optional[Collate] = None) -> None:
        self._samples = samples
        self._collate = collate
        self._size = len(samples)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._size

    def collated_by(self, collate: Collate) -> DatasetSource:
        """The same samples, put together by ``collate``."""
        return DatasetSource(self._samples, collate)

    def fetch(self, ids: np.ndarray) -> Tree:
        """Return the samples ``ids`` ``[n]`` as one tree of new arrays.

        Raises:
            DataError: If the dataset or ``collate`` fails, or returns what is no batch.
        """
        wanted = ids.tolist()
        samples = [self._sample(index) for index in wanted]
        if self._collate is None:
            return stack(samples, wanted)
        try:
            tree = self._collate(samples)
        except Exception as error:
            raise DataError(_failure(f"collate of the samples {wanted}", error)) from error
        return map_leaves(tree, lambda path, leaf: _collated(path, leaf, len(wanted)))

    def _sample(self, index: int) -> Any:
        try:
            return self._samples[index]
        except UnifiedIpuError:
            raise
        except Exception as error:
            raise DataError(_failure(f"sample {index}", error)) from error


def dataset(samples: Any, collate: Optional[Collate] = None) -> DatasetSource:
    """Samples of a map-style dataset such as ``torch.utils.data.Dataset``.

    Args:
        samples: Has ``__len__`` and ``__getitem__(index)``.
        collate: Turns a list of samples into one tree of arrays; without it leaves are stacked.

    Returns:
        A source of ``len(samples)`` samples.

    Raises:
        DataError: If it has no length or cannot be indexed.
    """
    if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        raise DataError(
            f"dataset: a {type(samples).__name__} has no __len__ and __getitem__; an order that is "
            "exact and can be resumed needs both"
        )
    return DatasetSource(samples, collate)


def stack(samples: Sequence[Any], ids: Sequence[int], where: str = "dataset") -> Tree:
    """Stack the leaves of equal trees on a new axis 0.

    Args:
        samples: At least one.
        ids: Theirs, for messages.
        where: Which source, for messages.

    Returns:
        One tree of new arrays, ``[len(samples), ...]`` each.

    Raises:
        DataError: If a leaf is no number or array, or the samples are not alike.
    """
    columns = [leaf_values(sample) for sample in samples]
    counts = {len(column) for column in columns}
    if len(counts) > 1:
        odd = next(k for k, column in enumerate(columns) if len(column) != len(columns[0]))
        raise DataError(
            f"{where}: sample {ids[0]} has {len(columns[0])} leaves but sample {ids[odd]} has "
            f"{len(columns[odd])}; samples of one batch must be trees of the same form"
        )
    leaf_index = -1

    def stacked(path: str, _: Any) -> np.ndarray:
        nonlocal leaf_index
        leaf_index += 1
        parts = [as_array(column[leaf_index], path, where) for column in columns]
        for k, part in enumerate(parts):
            if part.shape != parts[0].shape:
                raise DataError(
                    f"{where}: leaf {path} of sample {ids[0]} has shape {parts[0].shape} but of "
                    f"sample {ids[k]} {part.shape}; pad or crop them, or pass collate="
                )
        return np.stack(parts)

    return map_leaves(samples[0], stacked)


def _collated(path: str, leaf: Any, rows: int) -> np.ndarray:
    array = as_array(leaf, path, "collate")
    if array.ndim == 0 or len(array) != rows:
        raise DataError(
            f"collate: leaf {path} has shape {array.shape} for {rows} samples; expected one row a "
            "sample on axis 0"
        )
    # A copy: who wrote collate may return the same buffer each time.
    return np.array(array, order="C")


def _failure(what: str, error: Exception) -> str:
    return f"dataset: {what} failed with {type(error).__name__}: {error}"

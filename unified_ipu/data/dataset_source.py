"""Samples of a map-style dataset: anything with ``__len__`` and ``__getitem__``."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from unified_ipu.data.function_name import check_function, check_size_argument
from unified_ipu.data.leaves import as_array, leaf_values, map_leaves
from unified_ipu.data.source import Tree
from unified_ipu.errors import ConfigError, DataError, UnifiedIpuError
from unified_ipu.plan import DataSettings


class FunctionDataset:
    """Stands for the dataset that a function makes in the data process.

    Args:
        function: ``"module:function"``.
        size: Number of samples, at least 1.

    Raises:
        ConfigError: If they cannot be right.
    """

    def __init__(self, function: str, size: Optional[int]) -> None:
        check_function("dataset", function)
        check_size_argument("dataset", size)
        self.function = function
        self._size = size or 0

    def __len__(self) -> int:
        return self._size


Collate = Callable[[List[Any]], Tree]


class DatasetSource:
    """A map-style dataset, sample by sample.

    Args:
        samples: The dataset.
        collate: Turns a list of samples into one tree of arrays; None stacks their leaves.
        workers: Processes to read it in; 0 for the rank's own, None for what the plan says.
    """

    def __init__(
        self, samples: Any, collate: Optional[Collate] = None, workers: Optional[int] = None
    ) -> None:
        self.samples = samples
        self.collate = collate
        self.workers = workers
        self._size = len(samples)

    @property
    def size(self) -> int:
        """Number of samples."""
        return self._size

    def collated_by(self, collate: Collate) -> DatasetSource:
        """The same samples, put together by ``collate``."""
        return DatasetSource(self.samples, collate, self.workers)

    def num_workers(self, settings: DataSettings) -> int:
        """Data processes that read it; 0 for the rank's own process.

        Raises:
            ConfigError: If it can only be made in a data process, and there should be none.
        """
        is_named = isinstance(self.samples, FunctionDataset)
        if is_named and settings.isolate == "never":
            raise ConfigError(
                'data.isolate = "never": ui.data.dataset("module:function", size=) is made in data '
                "processes; pass the dataset itself, or leave data.isolate out"
            )
        if settings.isolate == "never":
            return 0
        if self.workers is not None:
            return self.workers
        if is_named:
            return max(1, settings.workers)
        return settings.workers if settings.workers > 1 else 0

    def fetch(self, ids: np.ndarray) -> Tree:
        """Return the samples ``ids`` ``[n]`` as one tree of new arrays.

        Raises:
            DataError: If the dataset or ``collate`` fails, or returns what is no batch.
        """
        wanted = ids.tolist()
        samples = [self._sample(index) for index in wanted]
        if self.collate is None:
            return stack(samples, wanted)
        try:
            tree = self.collate(samples)
        except Exception as error:
            raise DataError(_failure(f"collate of the samples {wanted}", error)) from error
        return map_leaves(tree, lambda path, leaf: _collated(path, leaf, len(wanted)))

    def _sample(self, index: int) -> Any:
        try:
            return self.samples[index]
        except UnifiedIpuError:
            raise
        except Exception as error:
            raise DataError(_failure(f"sample {index}", error)) from error


def dataset(
    samples: Any,
    collate: Optional[Collate] = None,
    *,
    size: Optional[int] = None,
    workers: Optional[int] = None,
) -> DatasetSource:
    """Samples of a map-style dataset such as ``torch.utils.data.Dataset``.

    It is read in the rank's own process, or in as many data processes a host as ``workers`` says;
    by default in those of the plan if ``data.workers`` is 2 or more. There a live dataset arrives
    pickled, and before each sample the generators of Python, numpy and torch are seeded from
    (seed, epoch, index); in the rank's own process they are left alone.

    Args:
        samples: Has ``__len__`` and ``__getitem__(index)``; or ``"module:function"``, called once
            in each data process, of which there is at least one, to make such a dataset.
        collate: Turns a list of samples into one tree of arrays; without it leaves are stacked.
        size: Number of samples of ``"module:function"``.
        workers: Data processes a host; 0 reads in the rank's own process.

    Returns:
        A source of ``len(samples)`` samples.

    Raises:
        ConfigError: If ``workers`` or ``size`` cannot be right.
        DataError: If it has no length or cannot be indexed.
    """
    if workers is not None and (type(workers) is not int or workers < 0):
        raise ConfigError(f"dataset: got workers={workers!r}; expected an integer >= 0")
    if isinstance(samples, str):
        return DatasetSource(FunctionDataset(samples, size), collate, workers or None)
    if size is not None:
        raise ConfigError(f"dataset: got size={size!r} with a live dataset, which has its own")
    if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")):
        raise DataError(
            f"dataset: a {type(samples).__name__} has no __len__ and __getitem__; an order that is "
            "exact and can be resumed needs both"
        )
    return DatasetSource(samples, collate, workers)


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

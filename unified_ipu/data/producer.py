"""What makes rows in the data process, and how rows become micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    Iterator,
    List,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    runtime_checkable,
)

import numpy as np

from unified_ipu.data.layout import form_of, paths_of
from unified_ipu.data.leaves import as_array, leaf_values
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.data.schedule import Portion
from unified_ipu.data.source import Tree
from unified_ipu.errors import DataError

_BLOCK_ROWS = 4096

Block = Tuple[np.ndarray, np.ndarray]  # ids [n] and seeds [n, 2], int64


@runtime_checkable
class Producer(Protocol):
    """Runs in the data process; made by ``create(function, size=, batched=, cores=)``."""

    def open(
        self, blocks: Callable[[], Iterator[Block]], *, rows: int
    ) -> Iterator[Tuple[np.ndarray, Tree]]:
        """Run the pipeline over ids, in their order.

        Args:
            blocks: Returns the ids and seeds to make rows of; may be run in another thread.
            rows: Rows of each result but the last.

        Yields:
            Ids ``[rows]`` as they came out of the pipeline, and the rows: numpy arrays, or what
            gives its memory away, valid until the next result is asked for.
        """
        ...

    def row_bytes(self) -> int:
        """Bytes of one row, or 0 if that is not known beforehand."""
        ...


def blocks_of(portions: Iterator[Portion], *, seed: int, epoch: int) -> Iterator[Block]:
    """Ids and seeds of all rows of ``portions``, some thousands at a time."""
    waiting: List[np.ndarray] = []
    rows = 0
    for portion in portions:
        waiting.append(portion.row_ids)
        rows += len(portion.row_ids)
        if rows >= _BLOCK_ROWS:
            ids = np.concatenate(waiting)
            yield ids, sample_seeds(seed, epoch, ids)
            waiting, rows = [], 0
    if waiting:
        ids = np.concatenate(waiting)
        yield ids, sample_seeds(seed, epoch, ids)


@dataclass(frozen=True)
class Chunk:
    """One result of a producer as flat arrays; the ids are the first."""

    arrays: Tuple[np.ndarray, ...]
    form: Any
    paths: Tuple[str, ...]
    key: object
    """Equal for chunks whose rows look alike."""

    @classmethod
    def of(cls, ids: np.ndarray, tree: Tree) -> Chunk:
        """Check and flatten what a producer returned.

        Raises:
            DataError: If a leaf is no array of numbers with one row a sample.
        """
        paths = paths_of(tree)
        leaves = [as_array(leaf, path, "pipeline") for path, leaf in zip(paths, leaf_values(tree))]
        for path, leaf in zip(paths, leaves):
            if leaf.ndim == 0 or len(leaf) != len(ids):
                raise DataError(
                    f"pipeline: leaf {path} has shape {leaf.shape} for {len(ids)} samples; with "
                    "batched=True the function returns one row a sample on axis 0 of every leaf"
                )
        form = form_of(tree)
        key = (str(form), *((leaf.dtype.str, leaf.shape[1:]) for leaf in leaves))
        arrays = (np.asarray(ids, dtype=np.int64), *leaves)
        return cls(arrays, form, ("ids", *paths), key)

    @classmethod
    def of_rows(cls, start: int, tree: Tree) -> Chunk:
        """Check and flatten rows whose ids are their positions, from ``start`` on.

        Raises:
            DataError: If there is no leaf, or one has not as many rows as the others.
        """
        first = next(iter(leaf_values(tree)), None)
        if first is None or np.ndim(first) == 0:
            raise DataError("stream: a sample has no array in it; expected at least one")
        return cls.of(np.arange(start, start + len(first), dtype=np.int64), tree)

    @property
    def rows(self) -> int:
        """Rows of every array."""
        return len(self.arrays[0])

    def check_like(self, other: Chunk) -> None:
        """Refuse to put rows of two results into one micro-batch if they differ.

        Raises:
            DataError: If trees, element types or shapes differ.
        """
        if self.key == other.key:
            return
        if self.form != other.form:
            raise DataError(
                f"pipeline: the tree of a batch changed from {other.form} to {self.form}"
            )
        for path, mine, others in zip(self.paths, self.arrays, other.arrays):
            if (mine.dtype, mine.shape[1:]) != (others.dtype, others.shape[1:]):
                raise DataError(
                    f"pipeline: leaf {path} has rows of {others.dtype} {others.shape[1:]} and of "
                    f"{mine.dtype} {mine.shape[1:]} in one micro-batch; give all rows one shape"
                )


class RowQueue:
    """Cuts a producer's results into pieces of as many rows as are wanted.

    Args:
        results: Of ``Producer.open``.
    """

    def __init__(self, results: Iterator[Tuple[np.ndarray, Tree]]) -> None:
        self._results = results
        self._chunk: Optional[Chunk] = None
        self._used = 0

    def head(self) -> Chunk:
        """The result that the next row comes from.

        Raises:
            DataError: If the pipeline has ended.
        """
        while self._chunk is None or self._used >= self._chunk.rows:
            result = next(self._results, None)
            if result is None:
                raise DataError("pipeline: it ended before all samples were made")
            self._chunk, self._used = Chunk.of(*result), 0
        return self._chunk

    def view(self, rows: int) -> Optional[Tuple[Chunk, List[np.ndarray]]]:
        """The next ``rows`` rows where they lie, and their result; None if they lie in two."""
        chunk = self.head()
        start, stop = self._used, self._used + rows
        if stop > chunk.rows:
            return None
        self._used = stop
        return chunk, [array[start:stop] for array in chunk.arrays]

    def take(self, rows: int, targets: Optional[Sequence[np.ndarray]]) -> None:
        """Copy the next ``rows`` rows to ``targets`` ``[rows, ...]``; None leaves them out."""
        first = self.head()
        done = 0
        while done < rows:
            chunk = self.head()
            if chunk is not first:
                chunk.check_like(first)
            count = min(rows - done, chunk.rows - self._used)
            for target, array in zip(targets or (), chunk.arrays):
                np.copyto(target[done : done + count], array[self._used : self._used + count])
            self._used += count
            done += count

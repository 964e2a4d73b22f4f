"""A live torch ``DataLoader``: its dataset, its sampler's order, its ``collate_fn``.

Recognised by its attributes, since the core imports no framework. What it says about batches and
worker processes is the plan's business here; where the two differ, this is refused or reported.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import Any, Iterable, List, Optional, Tuple

import numpy as np

from unified_ipu.comms import Communicator
from unified_ipu.data.dataset_source import Collate, DatasetSource
from unified_ipu.data.feed import Delivery
from unified_ipu.data.schedule import Portion
from unified_ipu.data.source import Tree
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.plan import BatchPlan

_log = logging.getLogger("unified_ipu.data")


class DataLoaderSource:
    """Samples of a map-style dataset in the order of a sampler; the sample id is the position.

    An epoch's order is drawn on the first rank and handed to the others. A sampler with a
    ``generator`` is put back to its first state and run through the epochs before, so that epoch
    5 is the same after a restart; one with ``set_epoch`` is told the epoch; any other one must
    give the same order for the same epoch by itself.

    Args:
        loader: The ``DataLoader``.
        collate: Instead of its ``collate_fn``.

    Raises:
        ConfigError: If its order cannot be kept, with what to pass instead.
    """

    def __init__(self, loader: Any, collate: Optional[Collate] = None) -> None:
        self._loader = loader
        self._own_batches = loader.batch_size is None
        self._sampler = loader.batch_sampler if self._own_batches else loader.sampler
        inner = getattr(self._sampler, "sampler", None) if self._own_batches else self._sampler
        _check_dataset(loader)
        _check_sampler(inner)
        if not hasattr(self._sampler, "__len__"):
            raise ConfigError(
                f"the sampler {type(self._sampler).__name__} of the DataLoader has no length; an "
                "epoch that is exact and can be resumed needs one: give it __len__"
            )
        self._dataset = DatasetSource(loader.dataset, collate or loader.collate_fn)
        self._drawing = _Drawing(self._sampler, getattr(inner, "generator", None))
        self._indices = np.empty(0, dtype=np.int64)
        self._batch_sizes: Tuple[int, ...] = ()
        self._size = len(self._sampler)
        if self._own_batches:
            batches = self._drawing.draw(0)
            self._batch_sizes = tuple(len(batch) for batch in batches)
            self._size = sum(self._batch_sizes)

    @property
    def size(self) -> int:
        """Samples of an epoch, as the sampler says."""
        return self._size

    def check(self, batch: BatchPlan, *, train: bool, micro_batch_size: Optional[int]) -> None:
        """Hold what the ``DataLoader`` says of batches against the plan.

        Args:
            batch: How samples are dealt.
            train: Whether it feeds updates.
            micro_batch_size: Of evaluation; None takes that of ``batch``.

        Raises:
            ConfigError: If its batches would be torn, or the plan does not drop what it drops.
        """
        size = micro_batch_size or batch.micro_batch_size
        theirs = self._loader.batch_size
        if self._own_batches:
            self._check_own_batches(batch, size, train=train)
        elif self._loader.drop_last and not (train and batch.remainder == "drop"):
            raise ConfigError(
                "the DataLoader has drop_last=True, but nothing is dropped here: leave drop_last "
                'out, or in training set batch.remainder = "drop"'
            )
        elif theirs != size:
            _log.warning(
                "batch_size=%s of the DataLoader is not used: a micro-batch has %d rows by the "
                "plan (batch.micro_batch_size)",
                theirs,
                size,
            )
        if getattr(self._loader, "num_workers", 0):
            _log.warning(
                "num_workers=%d of the DataLoader is not used: its samples are read in the rank's "
                "own process; pass its dataset and set data.workers to have processes for it",
                self._loader.num_workers,
            )

    def begin(self, epoch: int, communicator: Communicator) -> None:
        """Take over the order of an epoch from the first rank; collective.

        Raises:
            DataError: On all ranks, if it cannot be drawn or its size has changed.
        """
        indices, error = np.empty(self._size, dtype=np.int64), ""
        if communicator.rank == 0:
            try:
                indices = self._draw(epoch)
            except Exception as caught:  # noqa: BLE001 - the user's sampler may raise anything
                error = f"{type(caught).__name__}: {caught}"
        error = communicator.broadcast_value(error)
        if error:
            raise DataError(f"the sampler {type(self._sampler).__name__} failed: {error}")
        self._indices = communicator.broadcast(indices)

    def fetch(self, ids: np.ndarray) -> Tree:
        """Return the samples at the positions ``ids`` ``[n]`` of the epoch that was begun."""
        return self._dataset.fetch(self._indices[ids])

    def _draw(self, epoch: int) -> np.ndarray:
        drawn = self._drawing.draw(epoch)
        if self._own_batches:
            if tuple(len(batch) for batch in drawn) != self._batch_sizes:
                raise DataError("the sizes of its batches differ from those of the first epoch")
            drawn = list(chain.from_iterable(drawn))
        if len(drawn) != self._size:
            raise DataError(f"it gave {len(drawn)} indices, its length is {self._size}")
        indices = np.asarray(drawn)
        if indices.dtype.kind not in "iu":
            raise DataError(f"it gives indices of type {indices.dtype}; expected integers")
        return indices.astype(np.int64)

    def _check_own_batches(self, batch: BatchPlan, size: int, *, train: bool) -> None:
        sizes = self._batch_sizes
        odd = [k for k in sizes[:-1] if k != size]
        fits = not odd and (not sizes or sizes[-1] <= size)
        if not fits or (train and batch.global_batch_size % size):
            given = sorted(set(sizes))
            raise ConfigError(
                f"batches of {given} samples come from the batch_sampler of the DataLoader, but a "
                f"micro-batch has {size} and an update {batch.global_batch_size}, so they would "
                f"be torn apart; let batch.micro_batch_size be {max(given, default=size)} and "
                "batch.global_batch_size a multiple of it, or pass a sampler"
            )


class DataLoaderFeed:
    """Reads a ``DataLoaderSource`` in the rank's own process.

    Args:
        source: What to read.
        communicator: Of all replicas.
    """

    is_spread = False

    def __init__(self, source: DataLoaderSource, communicator: Communicator) -> None:
        self._source: Optional[DataLoaderSource] = source
        self._communicator = communicator

    def begin(self, epoch: int, start_update: int) -> None:  # noqa: ARG002 - of the Protocol
        """Take over the order of the epoch; collective."""
        self._opened.begin(epoch, self._communicator)

    def read(self, portion: Portion) -> Delivery:
        """Fetch the rows of ``portion`` by position."""
        return Delivery(portion.row_ids, self._opened.fetch(portion.row_ids))

    def extent(self, samples: int) -> Tuple[int, bool]:  # noqa: ARG002 - of the Protocol
        """All samples are known from the beginning."""
        return self._opened.size, True

    def close(self) -> None:
        """Let go of the source."""
        self._source = None

    @property
    def _opened(self) -> DataLoaderSource:
        if self._source is None:
            raise DataError("a micro-batch was asked for after its loader was closed")
        return self._source


class _Drawing:
    """Draws an epoch's order so that the same epoch gives the same one."""

    def __init__(self, sampler: Any, generator: Any) -> None:
        self._sampler = sampler
        self._generator = generator
        self._first = None if generator is None else generator.get_state()
        self._num_drawn = 0
        self._last: Optional[Tuple[int, List[Any]]] = None

    def draw(self, epoch: int) -> List[Any]:
        if self._last is not None and self._last[0] == epoch:
            return self._last[1]
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)
        if self._generator is not None:
            if epoch < self._num_drawn:
                self._generator.set_state(self._first)
                self._num_drawn = 0
            while self._num_drawn < epoch:
                _run_through(self._sampler)
                self._num_drawn += 1
        drawn = list(self._sampler)
        self._num_drawn = epoch + 1
        self._last = (epoch, drawn)
        return drawn


def is_dataloader(given: Any) -> bool:
    """Whether it is a torch ``DataLoader``, or what has all that counts of one."""
    names = ("dataset", "sampler", "batch_sampler", "batch_size", "collate_fn", "drop_last")
    return not isinstance(given, type) and all(hasattr(given, name) for name in names)


def is_iterable_dataset(given: Any) -> bool:
    """Whether it is a torch ``IterableDataset``, which has no samples by index."""
    return _has_ancestor(given, "IterableDataset")


def _check_dataset(loader: Any) -> None:
    if is_iterable_dataset(loader.dataset):
        raise ConfigError(
            f"the DataLoader reads the iterable dataset {type(loader.dataset).__name__}, which "
            "every rank would run through as a whole; put a function that returns the dataset "
            'into a module and pass ui.data.stream("module:function"): each sample is dealt once'
        )
    if loader.batch_size is None and loader.batch_sampler is None:
        raise ConfigError(
            "the DataLoader has batch_size=None, so its dataset gives batches or there are none; "
            "pass a dataset of single samples: ui.data.dataset(loader.dataset)"
        )


def _check_sampler(sampler: Any) -> None:
    if _has_ancestor(sampler, "DistributedSampler") or (
        hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")
    ):
        raise ConfigError(
            f"the DataLoader has a {type(sampler).__name__}, but the loader deals samples to "
            "replicas itself, so they would be split twice; leave the sampler out, or pass "
            "ui.data.dataset(loader.dataset, collate=loader.collate_fn)"
        )
    if hasattr(sampler, "generator") and sampler.generator is None:
        raise ConfigError(
            f"the DataLoader has a {type(sampler).__name__} without a generator (shuffle=True), "
            "whose order cannot be repeated; pass ui.data.dataset(loader.dataset, "
            "collate=loader.collate_fn), which is shuffled anew each epoch (data.shuffle), or give "
            "the DataLoader generator=torch.Generator().manual_seed(...)"
        )


def _has_ancestor(given: Any, name: str) -> bool:
    return any(each.__name__ == name for each in type(given).__mro__)


def _run_through(values: Iterable[Any]) -> None:
    for _ in values:
        pass

"""Micro-batches of a pipeline that runs in the rank's own process, handed over without a copy.

Each rank runs its own: an index-fed pipeline makes only the rank's samples; an iterable is read
whole on every rank, which keeps its own samples by position.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple, Union

from unified_ipu.adapter import Copies, registered
from unified_ipu.comms import Communicator
from unified_ipu.data.feed import Delivery
from unified_ipu.data.frameworks import GROUP, load_source, share_process
from unified_ipu.data.layout import tree_of
from unified_ipu.data.live_source import LiveSource
from unified_ipu.data.local_pass import LocalPass, LocalStream, LocalStreamPass
from unified_ipu.data.pipeline_source import PipelineSource, StreamSource
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.data.stream_reader import StreamReader
from unified_ipu.data.worker import load_function
from unified_ipu.errors import DataError
from unified_ipu.events import Counters
from unified_ipu.world import (
    Sharing,
    claim_cores,
    conflicts,
    current_environment,
    installed_packages,
    share_cores,
)

_log = logging.getLogger("unified_ipu.data")


class LocalFeed:
    """Runs a pipeline beside the model. Making one is collective.

    Args:
        source: The pipeline, the stream, or the live dataset.
        schedule: Who gets what.
        replica: The first one of this process.
        communicator: Of all replicas.
        counters: Are told of copies.
        search_path: Where the pipeline's module is looked for first.
        name: Of the loader.

    Raises:
        DataError: On all ranks, if the pipeline cannot be built on one of them.
    """

    def __init__(
        self,
        source: Union[PipelineSource, StreamSource],
        schedule: Schedule,
        *,
        replica: int,
        communicator: Communicator,
        counters: Counters,
        search_path: Sequence[str],
        name: str,
    ) -> None:
        self.is_spread = communicator.size > 1
        self._what = f"{name}: the pipeline {source.function!r}"
        self._name = name
        self._copies = Copies(counters)
        self._number = -1
        self._pass: Optional[LocalPass] = None
        _warn_of_conflicts()
        claims = communicator.all_gather_value(claim_cores(current_environment()))
        sharing = share_cores(claims, communicator.rank)
        self._open: Optional[Callable[[int, int, int], LocalPass]] = None
        error: Optional[str] = None
        cause: Optional[Exception] = None
        with communicator.phase("data start"):
            try:
                with _on_path(search_path):
                    self._open = self._opener(source, schedule, replica, sharing)
            except Exception as caught:  # noqa: BLE001 - the user's code may raise anything
                error, cause = self._failure(caught), caught
            errors = communicator.all_gather_value(error)
        failures = [text for text in errors if text is not None]
        if failures:
            self.close()
            raise DataError(failures[0]) from cause
        self._compare_seeds(source, communicator)

    def _compare_seeds(
        self, source: Union[PipelineSource, StreamSource], communicator: Communicator
    ) -> None:
        mine = source.seeds() if isinstance(source, LiveSource) else None
        everyone = communicator.all_gather_value(mine)
        for rank, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                self.close()
                raise DataError(
                    f"{self._what}: the shuffles of the dataset have the seeds {everyone[0]} on "
                    f"rank 0 and {theirs} on rank {rank}, so samples would not be dealt exactly "
                    "once; pass the same seed= to each shuffle on all ranks"
                )

    def _opener(
        self,
        source: Union[PipelineSource, StreamSource],
        schedule: Schedule,
        replica: int,
        sharing: Sharing,
    ) -> Callable[[int, int, int], LocalPass]:
        replicas = tuple(schedule.of_process(replica))
        cores = sharing.cores
        threads = cores if sharing.processes > 1 else 0
        if isinstance(source, StreamSource):
            if isinstance(source, LiveSource):
                function = source.adopted()
                share_process(0)  # who made it has used the threads already
            else:
                function = load_function(source.function)
                share_process(threads)
            reader = StreamReader(function, seed=schedule.seed, is_strict=self.is_spread)
            return partial(LocalStreamPass, schedule=schedule, replicas=replicas, reader=reader)
        function = load_function(source.function)
        share_process(threads, source.kind)
        create = _factory(source.kind)
        producer = create(function, size=source.size, batched=source.batched, cores=cores)
        return partial(LocalStream, schedule=schedule, replicas=replicas, producer=producer)

    def begin(self, epoch: int, start_update: int) -> None:
        """Start a pass; what is left of the one before is forgotten.

        Raises:
            DataError: If the feed is closed.
        """
        if self._open is None:
            raise DataError(f"{self._name}: a pass was begun after it was closed")
        self._number += 1
        with self._explained():
            self._pass = self._open(self._number, epoch, start_update)

    def read(self, portion: Portion) -> Delivery:
        """Make the rows of ``portion``, leaving out what comes before it.

        Raises:
            DataError: If the pipeline fails, or has no such micro-batch.
        """
        current = self._running
        with self._explained():
            while current.portion is not None and current.portion.ordinal < portion.ordinal:
                current.write(None)
            if current.portion is None or current.portion.ordinal != portion.ordinal:
                raise DataError("it is out of step with the loader")
            rows = current.take(self._copies)
        return Delivery(rows.arrays[0], tree_of(rows.form, rows.arrays[1:]))

    def extent(self, samples: int) -> Tuple[int, bool]:
        """Read on until it is known whether the pass has ``samples`` samples; for streams."""
        current = self._running
        with self._explained():
            return current.extent(samples)

    def close(self) -> None:
        """Let go of the pipeline."""
        self._open = self._pass = None

    @property
    def _running(self) -> LocalPass:
        if self._pass is None:
            raise DataError(f"{self._name}: a micro-batch was asked for after it was closed")
        return self._pass

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise DataError(self._failure(error)) from error

    def _failure(self, error: Exception) -> str:
        where = ""
        if self._pass is not None:
            where = f" in epoch {self._pass.epoch}, {self._pass.suspects()}"
        kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
        return f"{self._what} failed{where}: {kind}{error}"


def _warn_of_conflicts() -> None:
    """Say what may end this process by a signal, now that a pipeline shares it with a model."""
    for conflict in conflicts(installed_packages()):
        if conflict.is_fatal and "torch" in sys.modules:
            _log.warning(
                "%s: %s; %s", " + ".join(conflict.packages), conflict.problem, conflict.change
            )


@contextmanager
def _on_path(folders: Sequence[str]) -> Iterator[None]:
    """Find the user's modules as the data process does."""
    added = [folder for folder in folders if folder not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)


def _factory(kind: str) -> Any:
    points = registered(GROUP)
    if kind in points:
        return load_source(points[kind])
    if ":" in kind:
        return load_function(kind)
    known = ", ".join(sorted(points)) or "none"
    raise DataError(f"no source {kind!r} is registered; registered: {known}")

"""How far the samples of an epoch are known: all of a source with a size, a window of a stream."""

from __future__ import annotations

from typing import Optional

from unified_ipu.comms import Communicator
from unified_ipu.data.cursor import Cursor
from unified_ipu.data.feed import Feed
from unified_ipu.data.schedule import Schedule
from unified_ipu.data.windows import Windows
from unified_ipu.errors import DataError


class Frontier:
    """Starts the passes of one process and extends them as far as samples are known.

    Args:
        schedule: Who gets what; without a size it is that of a stream.
        replica: The first one of this process.
        feed: Where the samples come from.
        communicator: Of all replicas.
        name: Of the loader.
    """

    def __init__(
        self,
        schedule: Schedule,
        replica: int,
        *,
        feed: Feed,
        communicator: Communicator,
        name: str,
    ) -> None:
        self._schedule = schedule
        self._replicas = schedule.of_process(replica)
        self._feed = feed
        self._communicator = communicator
        self._name = name
        self._windows: Optional[Windows] = None
        self._first_update = 0

    def begin(self, epoch: int, position: int) -> Cursor:
        """Start a pass at ``position``.

        Returns:
            A cursor over its micro-batches; over none yet of a stream.
        """
        size = self._schedule.batch.global_batch_size
        update = self._first_update = -(-position // size)
        if self._schedule.size:
            self._feed.begin(epoch, update)
            portions = self._schedule.portions(epoch, self._replicas, update)
            cursor = Cursor(portions, position, epoch)
        else:
            # At a position that was the end of an epoch, this must show again.
            self._feed.begin(epoch, position // size)
            self._windows = Windows(self._schedule, self._replicas, position // size)
            cursor = Cursor((), position, epoch)
        cursor.samples = self._schedule.size
        return cursor

    def reach(self, cursor: Cursor, position: int) -> int:
        """Samples of the epoch that are known: all, of a stream up to the end of a window.

        For a stream this waits until the window that ``position`` lies in is there, and deals it,
        alike on all ranks however much more is known on one of them.

        Args:
            cursor: Of the pass; extended.
            position: From where on samples are needed.

        Returns:
            Their number; not more than ``position`` at the end of the epoch.

        Raises:
            DataError: If the stream failed, or on every rank if hosts have different ones.
        """
        windows = self._windows
        if windows is None:
            return cursor.samples
        end = windows.end_after(position)
        samples = min(end, self._feed.extent(end)[0])
        if self._schedule.train and self._feed.is_spread:
            self._agree(samples)
        while windows.start < samples:
            portions = windows.deal(min(samples, windows.start + windows.rows))
            cursor.extend(p for p in portions if p.update >= self._first_update)
        cursor.samples = max(cursor.samples, samples)
        return samples

    def check_start(self, epoch: int, position: int, samples: int) -> None:
        """Refuse a position in the middle of an update.

        Raises:
            DataError: If the position was the end of the stream, and is no more.
        """
        if position % self._schedule.batch.global_batch_size and position != samples:
            raise DataError(
                f"{self._name}: epoch {epoch} of the stream was at its end after {position} "
                f"samples, now it has {samples} or more; its function must give the same samples "
                "for the same epoch"
            )

    def _agree(self, samples: int) -> None:
        """Hold the streams of several hosts in step; in evaluation the certificate does it.

        Raises:
            DataError: On every rank, if they are not.
        """
        everybody = self._communicator.all_gather_value(samples)
        if min(everybody) != max(everybody):
            raise DataError(
                f"{self._name}: the stream has {everybody} samples on ranks 0 to "
                f"{len(everybody) - 1}; its function must give the same samples on every host"
            )

"""Which rows each replica gets, in which order: positions turned into ids, lazily."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import merge
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.data.order import Order
from unified_ipu.plan import BatchPlan, MicroSpan

_ROWS_AT_ONCE = 4096  # the order costs the same for 32 ids as for a thousand


@dataclass(frozen=True)
class Portion:
    """The rows of one micro-batch.

    Args:
        ordinal: Counts the micro-batches of its process in this pass.
        update: Index of its update in the epoch; in evaluation of the micro-batch.
        replica: The first replica of the process that gets it.
        span: Its positions; rows beyond the real ones are padding.
        row_ids: Ids of the samples to fetch, int64 ``[rows]``; padding repeats real samples.
    """

    ordinal: int
    update: int
    replica: int
    span: MicroSpan
    row_ids: np.ndarray

    @property
    def real(self) -> int:
        """Rows that are no padding; they come first."""
        return self.span.stop - self.span.start

    @property
    def ids(self) -> np.ndarray:
        """Ids of the rows, int64 ``[rows]``, -1 for padding."""
        if self.real == self.span.rows:
            return self.row_ids
        ids = self.row_ids.copy()
        ids[self.real :] = -1
        return ids

    @property
    def sample_weight(self) -> Optional[np.ndarray]:
        """float32 ``[rows]``, 0 for padding; None without padding."""
        if self.real == self.span.rows:
            return None
        return (np.arange(self.span.rows) < self.real).astype(np.float32)


@dataclass(frozen=True)
class Schedule:
    """Everything that decides who gets which sample when.

    Args:
        batch: How samples are dealt.
        size: Number of samples; 0 if it is known at the end only.
        seed: Keys the order, with the epoch.
        shuffle: False keeps the samples in their own order.
        train: Evaluation deals micro-batches in turn and ignores updates.
        micro_batch_size: Of evaluation; None takes that of ``batch``.
        replicas_per_process: Neighbouring replicas that one process feeds.
    """

    batch: BatchPlan
    size: int
    seed: int
    shuffle: bool
    train: bool
    micro_batch_size: Optional[int] = None
    replicas_per_process: int = 1

    def of_process(self, replica: int) -> range:
        """The replicas of the process that feeds ``replica``."""
        first = replica - replica % self.replicas_per_process
        return range(first, first + self.replicas_per_process)

    def order(self, epoch: int) -> Order:
        """The order of an epoch."""
        return Order(self.size, seed=self.seed, epoch=epoch, shuffle=self.shuffle)

    def portions(
        self, epoch: int, replicas: Sequence[int], start_update: int = 0
    ) -> Iterator[Portion]:
        """All micro-batches of ``replicas`` in what is left of an epoch, by position.

        Args:
            epoch: Keys the order.
            replicas: Those to serve, e.g. all of one host.
            start_update: The first update that counts; 0 in evaluation.

        Yields:
            The micro-batches; ids are computed some thousands at a time.
        """
        order = self.order(epoch)
        ordinals: Dict[int, int] = {}
        waiting: List[Tuple[int, int, MicroSpan]] = []
        rows = 0
        for update, replica, span in self.spans(sorted(replicas), start_update):
            waiting.append((update, replica, span))
            rows += span.rows
            if rows >= _ROWS_AT_ONCE:
                yield from self.with_ids(waiting, order, ordinals)
                waiting, rows = [], 0
        yield from self.with_ids(waiting, order, ordinals)

    @staticmethod
    def share(portions: Iterator[Portion], share: Tuple[int, int]) -> Iterator[Portion]:
        """The micro-batches of one data process: of each rank in turn one for every process.

        Args:
            portions: Of some replicas.
            share: Which of how many processes.

        Returns:
            Those of that process, as they come.
        """
        which, count = share
        if count == 1:
            return portions
        return (portion for portion in portions if portion.ordinal % count == which)

    def spans(
        self, replicas: Sequence[int], start_update: int
    ) -> Iterator[Tuple[int, int, MicroSpan]]:
        """Update, replica and positions of all micro-batches of sorted ``replicas``, in order."""
        if self.train:
            for update in range(start_update, self.batch.num_updates(self.size)):
                spans = [
                    (update, replica, span)
                    for replica in replicas
                    for span in self.batch.micro_spans(update, replica, self.size)
                ]
                yield from sorted(spans, key=lambda entry: entry[2].index)
            return
        yield from merge(*(self._evaluation(replica) for replica in replicas))

    def _evaluation(self, replica: int) -> Iterator[Tuple[int, int, MicroSpan]]:
        for span in self.batch.evaluation_spans(replica, self.size, self.micro_batch_size):
            yield span.index, replica, span

    def with_ids(
        self,
        waiting: Sequence[Tuple[int, int, MicroSpan]],
        order: Order,
        ordinals: Dict[int, int],
    ) -> Iterator[Portion]:
        """Turn spans into micro-batches; ``ordinals`` counts them by process."""
        if not waiting:
            return
        positions = [self._positions(update, span) for update, _, span in waiting]
        ids = order.ids(np.concatenate(positions))
        start = 0
        for update, replica, span in waiting:
            first = self.of_process(replica).start
            ordinal = ordinals.get(first, 0)
            yield Portion(ordinal, update, first, span, ids[start : start + span.rows])
            ordinals[first] = ordinal + 1
            start += span.rows

    def _positions(self, update: int, span: MicroSpan) -> np.ndarray:
        """Positions of all rows; padding goes round the real ones of the micro-batch or update."""
        real = np.arange(span.start, span.stop, dtype=np.int64)
        if span.rows == len(real):
            return real
        base = real
        if not len(real):
            base = np.arange(*self.batch.update_span(update, self.size), dtype=np.int64)
        return np.concatenate([real, np.resize(base, span.rows - len(real))])

"""One pass over the pipeline: rows made in order, cut into the micro-batches of all ranks."""

from __future__ import annotations

from typing import Iterator, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from unified_ipu.data.messages import Message
from unified_ipu.data.producer import Producer, RowQueue, blocks_of
from unified_ipu.data.ring_writer import RingWriter
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.data.source import Tree
from unified_ipu.plan import MicroSpan

_CHUNK_BYTES = 4 << 20
_SHOWN_IDS = 32


class Pass(Protocol):
    """What the data process deals to its ranks from beginning to end."""

    number: int
    epoch: int
    start_update: int
    portion: Optional[Portion]

    @property
    def is_over(self) -> bool:
        """Whether all of it is dealt."""
        ...

    def look_ahead(self) -> Sequence[Message]:
        """Make sure that ``portion`` is the next one; returns what all ranks must be told."""
        ...

    def write(self, writer: Optional[RingWriter]) -> None:
        """Deal the current portion to ``writer``, or to nobody; go on to the next."""
        ...

    def warm_up(self) -> None:
        """Make the first rows."""
        ...

    def suspects(self) -> str:
        """Say which samples it was at when it failed."""
        ...


class Stream:
    """One pass over the pipeline for all ranks of this host.

    Args:
        number: Counts the passes.
        epoch: Keys order and seeds.
        start_update: The first update that counts.
        schedule: Who gets what.
        replicas: Those of this host.
        producer: The pipeline.
        share: Which of how many data processes this is.
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        start_update: int,
        *,
        schedule: Schedule,
        replicas: Tuple[int, ...],
        producer: Producer,
        share: Tuple[int, int] = (0, 1),
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.start_update = start_update
        self._chunk_rows = _chunk_rows(schedule, replicas, producer)
        self._portions = schedule.share(schedule.portions(epoch, replicas, start_update), share)
        self.portion: Optional[Portion] = next(self._portions, None)
        again = schedule.share(schedule.portions(epoch, replicas, start_update), share)
        seed = schedule.seed

        def opened(portions: Iterator[Portion], rows: int) -> Iterator[Tuple[np.ndarray, Tree]]:
            return producer.open(lambda: blocks_of(portions, seed=seed, epoch=epoch), rows=rows)

        self._open = opened
        self._rows = RowQueue(opened(again, self._chunk_rows))

    @property
    def is_over(self) -> bool:
        """Whether all of it is dealt."""
        return self.portion is None

    def look_ahead(self) -> Sequence[Message]:
        """Nothing: the ranks know the size."""
        return ()

    def write(self, writer: Optional[RingWriter]) -> None:
        """Make the rows of the current portion, for ``writer`` or for nobody; go on to the next."""
        portion = self.portion
        if portion is None:
            return
        rows, slot, layout = portion.span.rows, 0, 0
        if writer is None:
            self._rows.take(rows, None)
        else:
            slot, layout, targets = writer.reserve(self._rows.head(), rows)
            self._rows.take(rows, targets)
        # Before the message: if the rank is gone, its rows are used up all the same.
        self.portion = next(self._portions, None)
        if writer is not None:
            writer.publish(slot, layout, self.number, portion.ordinal, rows)

    def warm_up(self) -> None:
        """Make the first rows, so that they are there when they are asked for."""
        if self.portion is not None:
            self._rows.head()

    def suspects(self) -> str:
        """Say which samples the pipeline was at when it failed; the one, if it fails again."""
        portion = self.portion
        if portion is None:
            return "after the last sample"
        rows = 0
        ids: List[int] = []
        first, last = portion.span.start, portion.span.stop
        while portion is not None and rows < self._chunk_rows:
            ids += portion.row_ids.tolist()
            rows, last = rows + portion.span.rows, portion.span.stop
            portion = next(self._portions, None)
        culprit = self._find_culprit(ids)
        if culprit is not None:
            return f"at sample {culprit} (of positions {first} to {last})"
        shown = ", ".join(map(str, ids[:_SHOWN_IDS])) + (", ..." if len(ids) > _SHOWN_IDS else "")
        return f"at one of {len(ids)} samples of positions {first} to {last}: ids {shown}"

    def _find_culprit(self, ids: Sequence[int]) -> Optional[int]:
        """Make the suspects again, one by one; None if none of them fails alone."""
        block = np.array(ids, dtype=np.int64)
        portions = [Portion(0, 0, 0, MicroSpan(0, 0, len(ids), len(ids)), block)]
        made = 0
        try:
            for _ in self._open(iter(portions), 1):
                made += 1
        except Exception:  # noqa: BLE001 - the user's code fails again, that is what is looked for
            return ids[made] if made < len(ids) else None
        return None


def _chunk_rows(schedule: Schedule, replicas: Tuple[int, ...], producer: Producer) -> int:
    """Rows to make at once: a round of micro-batches of this host, more if they are small."""
    size = schedule.batch.micro_batch_size
    if not schedule.train and schedule.micro_batch_size:
        size = schedule.micro_batch_size
    round_rows = size * len(replicas)
    row_bytes = producer.row_bytes()
    if not row_bytes:
        return round_rows
    return round_rows * max(1, min(8, _CHUNK_BYTES // (round_rows * row_bytes)))

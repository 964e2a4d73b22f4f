"""How a source is dealt whose end is not known: window by window, alike in all processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence

from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.plan import MicroSpan


class Windows:
    """Cuts a pass into windows: the updates of one call, in evaluation one round of replicas.

    Args:
        schedule: How samples are dealt; its size does not matter.
        replicas: Those to serve.
        start_update: The first update that counts; 0 in evaluation.
    """

    def __init__(self, schedule: Schedule, replicas: Sequence[int], start_update: int) -> None:
        batch = schedule.batch
        size = schedule.micro_batch_size or batch.micro_batch_size
        self.rows = batch.global_batch_size * batch.updates_per_call
        """Samples of a window."""
        if not schedule.train:
            self.rows = size * batch.num_replicas
        self.first = start_update * batch.global_batch_size
        """Where the pass begins."""
        self.start = self.first
        """Where the next window begins."""
        self._schedule = schedule
        self._replicas = tuple(sorted(replicas))
        self._ordinals: Dict[int, int] = {}

    def end_after(self, position: int) -> int:
        """The end of the window that ``position`` lies in."""
        return self.first + ((position - self.first) // self.rows + 1) * self.rows

    def deal(self, samples: int) -> List[Portion]:
        """Micro-batches of the next window.

        Args:
            samples: Its end, or where the source has ended before that.

        Returns:
            Those of the replicas, by position.
        """
        start, self.start = self.start, self.start + self.rows
        if samples <= start:
            return []
        known = replace(self._schedule, size=samples)
        if known.train:
            update = start // known.batch.global_batch_size
            spans = list(known.spans(self._replicas, update))
        else:
            first = start // self.rows * known.batch.num_replicas
            window = replace(self._schedule, size=samples - start)
            spans = [
                (first + update, replica, _shifted(span, first, start))
                for update, replica, span in window.spans(self._replicas, 0)
            ]
        return list(known.with_ids(spans, known.order(0), self._ordinals))


def _shifted(span: MicroSpan, index: int, start: int) -> MicroSpan:
    return MicroSpan(span.index + index, span.start + start, span.stop + start, span.rows)

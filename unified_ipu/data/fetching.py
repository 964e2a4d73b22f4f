"""One pass over a map-style dataset in a data process: each micro-batch is fetched by id."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.data.messages import Message
from unified_ipu.data.producer import Chunk
from unified_ipu.data.ring_writer import RingWriter
from unified_ipu.data.sample_randomness import SeededFetching
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.errors import DataError


class FetchPass:
    """Fetches the micro-batches of one data process, of those that share a dataset.

    Args:
        number: Counts the passes.
        epoch: Keys order and seeds.
        start_update: The first update that counts.
        schedule: Who gets what.
        replicas: Those of this host.
        share: Which of how many processes this is.
        samples: What makes them.
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        start_update: int,
        *,
        schedule: Schedule,
        replicas: Tuple[int, ...],
        share: Tuple[int, int],
        samples: SeededFetching,
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.start_update = start_update
        self._samples = samples
        self._portions = schedule.share(schedule.portions(epoch, replicas, start_update), share)
        self.portion: Optional[Portion] = next(self._portions, None)
        self._fetched: Optional[Chunk] = None

    @property
    def is_over(self) -> bool:
        """Whether all of it is dealt."""
        return self.portion is None

    def look_ahead(self) -> Sequence[Message]:
        """Nothing: the ranks know the size."""
        return ()

    def write(self, writer: Optional[RingWriter]) -> None:
        """Fetch the current micro-batch into a slot of ``writer``; for nobody it is left out."""
        portion = self.portion
        if portion is None:
            return
        if writer is None:
            self._go_on()
            return
        chunk = self._fetched or self._fetch(portion)
        slot, layout, targets = writer.reserve(chunk, portion.span.rows)
        for target, array in zip(targets, chunk.arrays):
            np.copyto(target, array)
        self._go_on()
        writer.publish(slot, layout, self.number, portion.ordinal, portion.span.rows)

    def warm_up(self) -> None:
        """Fetch the first micro-batch, so that it is there when it is asked for."""
        if self.portion is not None:
            self._fetched = self._fetch(self.portion)

    def suspects(self) -> str:
        """Say which samples were being fetched."""
        if self.portion is None:
            return "after the last sample"
        return f"at positions {self.portion.span.start} to {self.portion.span.stop}"

    def _fetch(self, portion: Portion) -> Chunk:
        return Chunk.of(portion.row_ids, self._samples.fetch(portion.row_ids, self.epoch))

    def _go_on(self) -> None:
        self._fetched = None
        self.portion = next(self._portions, None)


def check_size(samples: Any, size: int) -> None:
    """Refuse a dataset that is not the one the ranks count with.

    Raises:
        DataError: If its length differs.
    """
    if len(samples) != size:
        raise DataError(f"the dataset has {len(samples)} samples; size={size} was given")

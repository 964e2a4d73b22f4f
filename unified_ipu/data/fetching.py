"""One pass over a map-style dataset in a data process: each micro-batch is fetched by id."""

from __future__ import annotations

import random
import sys
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.data.dataset_source import Collate, DatasetSource
from unified_ipu.data.messages import Message
from unified_ipu.data.mixing import sample_seeds
from unified_ipu.data.producer import Chunk
from unified_ipu.data.ring_writer import RingWriter
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.errors import DataError


class FetchPass:
    """Fetches the micro-batches of one data process, of those that share a dataset.

    The libraries that samples draw random numbers from are seeded before each sample, so what is
    drawn depends on (seed, epoch, sample) only: not on the worker, nor on the world.

    Args:
        number: Counts the passes.
        epoch: Keys order and seeds.
        start_update: The first update that counts.
        schedule: Who gets what.
        replicas: Those of this host.
        share: Which of how many processes this is.
        samples: The dataset.
        collate: Turns a list of samples into a batch; None stacks their leaves.
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
        samples: Any,
        collate: Optional[Collate],
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.start_update = start_update
        self._source = DatasetSource(Seeded(samples, schedule.seed, epoch), collate)
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
        return Chunk.of(portion.row_ids, self._source.fetch(portion.row_ids))

    def _go_on(self) -> None:
        self._fetched = None
        self.portion = next(self._portions, None)


class Seeded:
    """A map-style dataset that seeds Python's, numpy's and torch's generators for each sample.

    Args:
        samples: The dataset.
        seed: The plan's.
        epoch: Of the loader.
    """

    def __init__(self, samples: Any, seed: int, epoch: int) -> None:
        self._samples = samples
        self._seed = seed
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        words = sample_seeds(self._seed, self._epoch, np.array([index])).view(np.uint32)[0]
        random.seed(words.tobytes())
        np.random.seed(words)
        torch: Any = sys.modules.get("torch")  # the user's; nothing is imported here
        if torch is not None:
            torch.manual_seed(int.from_bytes(words.tobytes()[:8], "little"))
        return self._samples[index]


def check_size(samples: Any, size: int) -> None:
    """Refuse a dataset that is not the one the ranks count with.

    Raises:
        DataError: If its length differs.
    """
    if len(samples) != size:
        raise DataError(f"the dataset has {len(samples)} samples; size={size} was given")

"""One pass over an iterable: samples read a window ahead, dealt to the replicas by position."""

from __future__ import annotations

from collections import deque
from typing import Deque, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.data.messages import Kind, Message
from unified_ipu.data.producer import Chunk
from unified_ipu.data.ring_writer import RingWriter
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.data.source import Tree
from unified_ipu.data.stream_reader import StreamReader
from unified_ipu.data.windows import Windows


class StreamPass:
    """Like ``dealing.Stream``, of a source whose size shows at its end.

    Ranks cannot know which updates there are. So a window is read whole before any of it is dealt,
    and all ranks are told how far the samples reach; the end is where a window stays short.

    Args:
        number: Counts the passes.
        epoch: Handed to the user's function.
        start_update: The first update that counts.
        schedule: How samples are dealt.
        replicas: Those of this host.
        reader: Of the iterables.
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        start_update: int,
        *,
        schedule: Schedule,
        replicas: Tuple[int, ...],
        reader: StreamReader,
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.start_update = start_update
        self.portion: Optional[Portion] = None
        self._windows = Windows(schedule, replicas, start_update)
        size = schedule.micro_batch_size or schedule.batch.micro_batch_size
        rows = min(self._windows.rows, size * len(replicas))
        start = self._windows.first
        self._samples = _SampleWindow(reader.open(epoch, start, rows=rows), start)
        self._portions: Iterator[Portion] = iter(())
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether all of it is dealt."""
        return self._has_ended and self.portion is None

    def look_ahead(self) -> Sequence[Message]:
        """Read the next window once the one before is dealt; returns what the ranks must know."""
        if self.portion is not None or self._has_ended:
            return ()
        start = self._windows.start
        known = self._samples.read_to(start + self._windows.rows)
        self._has_ended = known < start + self._windows.rows
        self._samples.forget(start)
        self._portions = iter(self._windows.deal(known))
        self.portion = next(self._portions, None)
        return (Message(Kind.EXTENT, slot=self._has_ended, stream=self.number, rows=known),)

    def write(self, writer: Optional[RingWriter]) -> None:
        """Copy the rows of the current portion to ``writer``, or to nobody; go on to the next."""
        portion = self.portion
        if portion is None:
            return
        if writer is None:
            self.portion = next(self._portions, None)
            return
        chunk = self._samples.find(int(portion.row_ids[0]))[1]
        slot, layout, targets = writer.reserve(chunk, portion.span.rows)
        self._samples.copy(portion, targets)
        self.portion = next(self._portions, None)
        writer.publish(slot, layout, self.number, portion.ordinal, portion.span.rows)

    def warm_up(self) -> None:
        """Read the first window, so that it is there when it is asked for."""
        self._samples.read_to(self._windows.start + self._windows.rows)

    def suspects(self) -> str:
        """Say where the iterable was when it failed."""
        return f"after {self._samples.known} samples or a few more"


class _SampleWindow:
    """The samples that were read and may still be dealt."""

    def __init__(self, results: Iterator[Tree], start: int) -> None:
        self._results = results
        self._chunks: Deque[Tuple[int, Chunk]] = deque()
        self.known = start

    def read_to(self, position: int) -> int:
        """Read until ``position`` samples are there; returns their number, less at the end."""
        while self.known < position:
            tree = next(self._results, None)
            if tree is None:
                return self.known
            chunk = Chunk.of_rows(self.known, tree)
            self._chunks.append((self.known, chunk))
            self.known += chunk.rows
        return position

    def forget(self, position: int) -> None:
        """Let go of what lies before ``position``."""
        while self._chunks and self._chunks[0][0] + self._chunks[0][1].rows <= position:
            self._chunks.popleft()

    def find(self, position: int) -> Tuple[int, Chunk]:
        """The chunk that ``position`` lies in, and where that one starts."""
        return next(
            (start, chunk) for start, chunk in self._chunks if position < start + chunk.rows
        )

    def copy(self, portion: Portion, targets: List[np.ndarray]) -> None:
        """Copy the rows of ``portion`` to ``targets`` ``[rows, ...]``; padding one by one."""
        done, ids = 0, portion.row_ids
        _, first = self.find(int(ids[0]))
        while done < len(ids):
            position = int(ids[done])
            start, chunk = self.find(position)
            chunk.check_like(first)
            offset = position - start
            count = 1
            if done < portion.real:
                count = min(portion.real - done, chunk.rows - offset)
            for target, array in zip(targets, chunk.arrays):
                np.copyto(target[done : done + count], array[offset : offset + count])
            done += count

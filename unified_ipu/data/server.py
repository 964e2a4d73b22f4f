"""The loop of the data process: streams asked for by ranks, dealt into their rings in order."""

from __future__ import annotations

import select
import traceback
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.data.layout import Layout
from unified_ipu.data.messages import Kind, Message, shorten
from unified_ipu.data.producer import Producer, RowQueue, blocks_of
from unified_ipu.data.ring_writer import RingWriter
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.data.source import Tree
from unified_ipu.errors import DataError
from unified_ipu.plan import MicroSpan

_CHUNK_BYTES = 4 << 20
_SHOWN_IDS = 32


class Stream:
    """One pass over the pipeline for all ranks of this host.

    Args:
        number: Counts the passes.
        epoch: Keys order and seeds.
        start_update: The first update that counts.
        schedule: Who gets what.
        replicas: Those of this host.
        producer: The pipeline.
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
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.start_update = start_update
        self._chunk_rows = _chunk_rows(schedule, replicas, producer)
        self._portions = schedule.portions(epoch, replicas, start_update)
        self.portion: Optional[Portion] = next(self._portions, None)
        again = schedule.portions(epoch, replicas, start_update)
        seed = schedule.seed

        def opened(portions: Iterator[Portion], rows: int) -> Iterator[Tuple[np.ndarray, Tree]]:
            return producer.open(lambda: blocks_of(portions, seed=seed, epoch=epoch), rows=rows)

        self._open = opened
        self._rows = RowQueue(opened(again, self._chunk_rows))

    def write(self, writer: Optional[RingWriter]) -> None:
        """Make the rows of the current portion, for ``writer`` or for nobody; go on to the next."""
        portion = self.portion
        if portion is None:
            return
        rows = portion.span.rows
        if writer is None:
            self._rows.take(rows, None)
        else:
            head = self._rows.head()
            layout = Layout.of(
                [array.dtype.str for array in head.arrays],
                [(rows, *array.shape[1:]) for array in head.arrays],
                head.form,
            )
            slot, targets = writer.reserve(layout)
            self._rows.take(rows, targets)
            writer.publish(slot, layout, self.number, portion.ordinal, rows)
        self.portion = next(self._portions, None)

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


class Server:
    """Serves the ranks of a host until all of them are gone.

    Args:
        producer: The pipeline.
        schedule: Who gets what.
        writers: By replica.
        what: Loader and pipeline, for messages.
    """

    def __init__(
        self, producer: Producer, schedule: Schedule, writers: Dict[int, RingWriter], what: str
    ) -> None:
        self._producer = producer
        self._schedule = schedule
        self._writers = writers
        self._replicas = tuple(sorted(writers))
        self._what = what
        self._wanted: Dict[int, Tuple[int, int]] = {}
        self._stream: Optional[Stream] = None
        self._next_number = 0
        self._poll = select.poll()
        self._by_descriptor: Dict[int, int] = {}
        for replica, writer in writers.items():
            self._by_descriptor[writer.channel.fileno()] = replica
            self._poll.register(writer.channel.fileno(), select.POLLIN)

    def run(self) -> None:
        """Serve; an error of the pipeline is told to every rank, then nothing is made any more."""
        try:
            while self._writers:
                self._listen(wait=not self._step())
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._fail(error)
            self._stream = None
            while self._writers:
                self._listen(wait=True)

    def _step(self) -> bool:
        """Do one piece of work; False if there is none before a rank says something."""
        stream = self._stream
        if stream is None or stream.portion is None or self._is_abandoned(stream):
            return self._open_next()
        writer = self._writers.get(stream.portion.replica)
        if writer is not None and writer.wanted_stream > stream.number:
            writer = None
        if writer is not None and not writer.is_ready:
            return False
        try:
            stream.write(writer)
        except (BrokenPipeError, ConnectionResetError):
            self._drop(stream.portion.replica)
        return True

    def _is_abandoned(self, stream: Stream) -> bool:
        return all(writer.wanted_stream > stream.number for writer in self._writers.values())

    def _open_next(self) -> bool:
        self._stream = None
        wanted = self._wanted.pop(self._next_number, None)
        if wanted is None:
            return False
        epoch, start_update = wanted
        number, self._next_number = self._next_number, self._next_number + 1
        self._stream = Stream(
            number,
            epoch,
            start_update,
            schedule=self._schedule,
            replicas=self._replicas,
            producer=self._producer,
        )
        return True

    def _listen(self, *, wait: bool) -> None:
        for descriptor, _ in self._poll.poll(None if wait else 0):
            replica = self._by_descriptor[descriptor]
            message, _ = self._writers[replica].channel.receive()
            if message is None:
                self._drop(replica)
            elif message.kind == Kind.RELEASE:
                self._writers[replica].release(message.slot, message.generation)
            elif message.kind == Kind.OPEN:
                self._want(replica, message)

    def _want(self, replica: int, message: Message) -> None:
        number, wanted = message.stream, (message.ordinal, message.rows)
        self._writers[replica].wanted_stream = number
        known = self._wanted.get(number)
        if self._stream is not None and self._stream.number == number:
            known = (self._stream.epoch, self._stream.start_update)
        if known is None and number >= self._next_number:
            self._wanted[number] = wanted
        elif known is not None and known != wanted:
            raise DataError(
                f"the ranks of one host started different passes: replica {replica} asked for "
                f"(epoch, update) {wanted}, another one for {known}; loop over a loader and seek "
                "it on all ranks alike"
            )

    def _drop(self, replica: int) -> None:
        writer = self._writers.pop(replica)
        descriptor = writer.channel.fileno()
        self._poll.unregister(descriptor)
        del self._by_descriptor[descriptor]
        writer.close()

    def _fail(self, error: Exception) -> None:
        text = failure_text(self._what, error, self._stream)
        for replica in tuple(self._writers):
            self._writers[replica].tell(Message(Kind.ERROR, payload=text))


def failure_text(what: str, error: Exception, stream: Optional[Stream] = None) -> str:
    """Describe an error of the pipeline for the ranks, with the lines of the user in it."""
    where = "" if stream is None else f" in epoch {stream.epoch}, {stream.suspects()}"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    name = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
    return shorten(f"{what} failed{where}: {name}{error}\nIn the data process:\n{trace}")


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

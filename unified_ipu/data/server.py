"""The loop of the data process: streams asked for by ranks, dealt into their rings in order."""

from __future__ import annotations

import select
import traceback
from typing import Callable, Dict, Optional, Tuple

from unified_ipu.data.dealing import Pass
from unified_ipu.data.messages import Kind, Message, shorten
from unified_ipu.data.ring_writer import RingWriter
from unified_ipu.errors import DataError


class Server:
    """Serves the ranks of a host until all of them are gone.

    Args:
        open_pass: Starts the pass of a number, an epoch and a first update.
        writers: By the first replica of each rank.
        what: Loader and pipeline, for messages.
        train: Whether the epoch after this one is asked for next, or this one again.
    """

    def __init__(
        self,
        open_pass: Callable[[int, int, int], Pass],
        writers: Dict[int, RingWriter],
        what: str,
        *,
        train: bool,
    ) -> None:
        self._open = open_pass
        self._writers = writers
        self._what = what
        self._train = train
        self._wanted: Dict[int, Tuple[int, int]] = {}
        self._stream: Optional[Pass] = None
        self._likely: Optional[Pass] = None
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
            self._stream = self._likely = None
            while self._writers:
                self._listen(wait=True)

    def _step(self) -> bool:
        """Do one piece of work; False if there is none before a rank says something."""
        stream = self._stream
        if stream is None or stream.is_over or self._is_abandoned(stream):
            return self._open_next()
        for message in stream.look_ahead():
            for each in self._writers.values():
                each.tell(message)
        if stream.portion is None:
            return True
        replica = stream.portion.replica
        writer = self._writers.get(replica)
        if writer is not None and writer.wanted_stream > stream.number:
            writer = None
        if writer is not None and not writer.is_ready:
            return False
        try:
            stream.write(writer)
        except (BrokenPipeError, ConnectionResetError):
            self._drop(replica)
        return True

    def _is_abandoned(self, stream: Pass) -> bool:
        return all(writer.wanted_stream > stream.number for writer in self._writers.values())

    def _open_next(self) -> bool:
        before, self._stream = self._stream, None
        wanted = self._wanted.pop(self._next_number, None)
        if wanted is None:
            if before is not None and before.is_over and self._writers:
                self._open_likely(before)
            return False
        likely, self._likely = self._likely, None
        if likely is None or (likely.epoch, likely.start_update) != wanted:
            likely = self._open(self._next_number, *wanted)
        self._stream = likely
        self._next_number += 1
        return True

    def _open_likely(self, before: Pass) -> None:
        """Start the pass that will be asked for next, while the ranks finish this one."""
        epoch = before.epoch + 1 if self._train else before.epoch
        self._likely = self._open(self._next_number, epoch, 0)
        try:
            self._likely.warm_up()
        except Exception:  # noqa: BLE001 - whatever it is, it is told when the pass is asked for
            self._likely = None

    def _listen(self, *, wait: bool) -> None:
        for descriptor, _ in self._poll.poll(None if wait else 0):
            replica = self._by_descriptor[descriptor]
            message, _ = self._writers[replica].channel.receive()
            if message is None:
                self._drop(replica)
            elif message.kind == Kind.RELEASE:
                self._writers[replica].release(message.ordinal, message.generation)
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


def failure_text(what: str, error: Exception, stream: Optional[Pass] = None) -> str:
    """Describe an error of the pipeline for the ranks, with the lines of the user in it."""
    where = "" if stream is None else f" in epoch {stream.epoch}, {stream.suspects()}"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    name = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
    return shorten(f"{what} failed{where}: {name}{error}\nIn the data process:\n{trace}")

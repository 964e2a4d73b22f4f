"""One array after another from one rank to another: a pipe of two slots in shared memory."""

from __future__ import annotations

import time
from typing import Any, Callable, Tuple

import numpy as np

from unified_ipu.comms.arrays import to_flat
from unified_ipu.comms.futex import futex_wait
from unified_ipu.comms.lateness import Stall
from unified_ipu.comms.letter import open_header, write_header
from unified_ipu.comms.segment import PAGE_BYTES, Segment
from unified_ipu.comms.watch import Flag, Watch, is_reached, wrapped
from unified_ipu.errors import CollectiveError

_NUM_SLOTS = 2
_SLOT_BYTES = 2**18
_LINGER_SECONDS = 5.0
_SENT, _TAKEN = 0, 32  # 32-bit words, 128 bytes apart: each has one writer
_LENGTHS = 32  # 64-bit words
MAILBOX_BYTES = PAGE_BYTES + _NUM_SLOTS * _SLOT_BYTES


class Mailbox:
    """The pipe from one rank to another, as one of the two sees it."""

    def __init__(self, segment: Segment, watch: Watch, stalled: Callable[[str], Stall]) -> None:
        self.segment = segment
        self._watch = watch
        self._stalled = stalled
        self._sent = Flag(segment.ints, _SENT, segment.address + 4 * _SENT)
        self._taken = Flag(segment.ints, _TAKEN, segment.address + 4 * _TAKEN)
        self._chunk = 0

    def send(self, value: Any, name: str) -> None:
        """Write the header and the bytes of an array.

        Raises:
            CollectiveError: If it is no array that can be sent, or the other rank is lost.
        """
        source = to_flat(value)
        operation = f"send {source.dtype} {source.array.shape} {name!r}"
        self._write(write_header(source, name), operation)
        if source.problem:
            raise CollectiveError(f"{operation}: {source.problem}")
        data = source.flat.view(np.uint8)
        for first in range(0, data.size, _SLOT_BYTES):
            self._write(data[first : first + _SLOT_BYTES], operation)

    def linger(self) -> None:
        """Wait a little until the other rank has read all, so that closing loses nothing."""
        deadline = time.monotonic() + _LINGER_SECONDS
        wanted = wrapped(self._chunk)
        while time.monotonic() < deadline and not self._watch.board.aborted:
            seen = self._taken.words[self._taken.index]
            if is_reached(seen, wanted) or self._stalled("close").left or self._watch.dead():
                return
            futex_wait(self._taken.address, seen)

    def receive(self, out: Any, name: str) -> Tuple[Any, str]:
        """Read the next array.

        Returns:
            The array, and "" or what does not fit: then the array is None.
        """
        operation = f"recv {name!r}"
        target, problem = open_header(self._read(operation), out, name)
        self._take()
        if problem:
            return None, problem
        data = target.flat.view(np.uint8)
        first = 0
        while first < data.size:
            piece = self._read(operation)
            data[first : first + piece.size] = piece
            first += piece.size
            self._take()
        return target.finish(), ""

    def _write(self, data: np.ndarray, operation: str) -> None:
        self._chunk += 1
        wanted = wrapped(self._chunk - _NUM_SLOTS)
        self._watch.wait(self._taken, wanted, lambda: self._stalled(operation))
        slot = self._chunk % _NUM_SLOTS
        first = PAGE_BYTES + slot * _SLOT_BYTES
        self.segment.array[first : first + data.size] = data
        self.segment.longs[_LENGTHS + slot] = data.size
        self._sent.post(wrapped(self._chunk))

    def _read(self, operation: str) -> np.ndarray:
        self._chunk += 1
        self._watch.wait(self._sent, wrapped(self._chunk), lambda: self._stalled(operation))
        slot = self._chunk % _NUM_SLOTS
        first = PAGE_BYTES + slot * _SLOT_BYTES
        return self.segment.array[first : first + self.segment.longs[_LENGTHS + slot]]

    def _take(self) -> None:
        self._taken.post(wrapped(self._chunk))

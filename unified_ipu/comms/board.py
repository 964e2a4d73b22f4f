"""What every process publishes about itself, and the one reason why a job was given up.

One board a world, shared by all communicators made from it: a line of each rank (process id, last
note, announced phase, whether it has left) and the abort record. The first to take the lock writes
the record, so every rank names the same cause.
"""

from __future__ import annotations

import time
from typing import Optional, Type

from unified_ipu.comms.futex import build_lock, take_lock
from unified_ipu.comms.segment import Segment
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError, PeerLostError

KIND_LOST = 1
KIND_TIMEOUT = 2
KIND_MISMATCH = 3
_ERRORS = {
    KIND_LOST: PeerLostError,
    KIND_TIMEOUT: CollectiveTimeoutError,
    KIND_MISMATCH: CollectiveError,
}

_ABORT_BYTES = 8192
_ABORT_TEXT = 128  # first byte of the text in the abort record; the lock is at byte 64
_LOCK = 64
_RANK_BYTES = 1024
_NOTE = 64  # first byte of the note in a rank's line
_NOTE_BYTES = 512
_PHASE = 640
_PHASE_BYTES = 256
_LOCK_PATIENCE_SECONDS = 1.0

# 32-bit words of a rank's line
_PID, _DUMP_FD, _LEFT, _IN_PHASE = 0, 1, 2, 3


class Board:
    """The board as one rank sees it."""

    def __init__(self, segment: Segment, rank: int, size: int, offset: int = 0) -> None:
        self.rank = rank
        self.size = size
        self._view = segment.view
        self._ints = segment.ints
        self._abort = offset // 4
        self._address = segment.address + offset
        self._lines = offset + _ABORT_BYTES
        self._mine = self._lines + rank * _RANK_BYTES

    @staticmethod
    def num_bytes(size: int) -> int:
        """Bytes a board of ``size`` ranks takes."""
        return _ABORT_BYTES + size * _RANK_BYTES

    def prepare(self) -> None:
        """Make the lock; called once, by who created the segment."""
        build_lock(self._address + _LOCK)

    @property
    def aborted(self) -> bool:
        """Whether anyone has given up."""
        return self._ints[self._abort] != 0

    def abort(self, kind: int, rank: int, text: str) -> None:
        """Give the job up; only the first call of all ranks counts.

        Args:
            kind: One of the ``KIND_`` numbers: which error all ranks raise.
            rank: Who is to blame.
            text: The message of that error.
        """
        if self.aborted or self._is_late():
            return
        data = text.encode("utf-8", "replace")[: _ABORT_BYTES - _ABORT_TEXT]
        first = self._abort * 4 + _ABORT_TEXT
        self._view[first : first + len(data)] = data
        self._ints[self._abort + 1] = kind
        self._ints[self._abort + 2] = rank
        self._ints[self._abort + 3] = len(data)
        self._ints[self._abort] = 1

    def _is_late(self) -> bool:
        """Whether another rank writes the record; returns once it is there."""
        if take_lock(self._address + _LOCK):
            return False
        deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self.aborted:
                return True
            time.sleep(0.001)
        return False  # it died in between: this cause is as good

    def error(self) -> CollectiveError:
        """The error that every rank raises after an abort."""
        first = self._abort * 4 + _ABORT_TEXT
        length = self._ints[self._abort + 3]
        text = bytes(self._view[first : first + length]).decode("utf-8", "replace")
        kind: Type[CollectiveError] = _ERRORS.get(self._ints[self._abort + 1], CollectiveError)
        return kind(text)

    def publish(self, pid: int, dump_fd: int) -> None:
        """Tell the others this process, and where its stack can be asked for (-1: nowhere)."""
        self._ints[self._mine // 4 + _DUMP_FD] = dump_fd
        self._ints[self._mine // 4 + _PID] = pid

    def pid(self, rank: int) -> int:
        """Process id of a rank, 0 before it has published it."""
        return self._word(rank, _PID)

    def dump_fd(self, rank: int) -> int:
        """Descriptor, in that process, of its stack dump; -1 if it takes no signal for it."""
        return self._word(rank, _DUMP_FD)

    def leave(self) -> None:
        """Say that this rank is done, so that its end is no failure; it takes no signal now."""
        self._ints[self._mine // 4 + _DUMP_FD] = -1
        self._ints[self._mine // 4 + _LEFT] = 1

    def has_left(self, rank: int) -> bool:
        """Whether a rank has said that it is done."""
        return self._word(rank, _LEFT) != 0

    def note(self, text: str) -> None:
        """Replace this rank's note; costs well under a microsecond."""
        self._write(self._mine + _NOTE, text, _NOTE_BYTES)

    def read_note(self, rank: int) -> str:
        """The last note of a rank, "" if there is none."""
        return self._read(self._lines + rank * _RANK_BYTES + _NOTE, _NOTE_BYTES)

    def announce(self, phase: Optional[str]) -> None:
        """Announce a phase in which nobody waits for this rank in vain, or its end."""
        if phase is None:
            self._ints[self._mine // 4 + _IN_PHASE] = 0
        else:
            self._write(self._mine + _PHASE, phase, _PHASE_BYTES)
            self._ints[self._mine // 4 + _IN_PHASE] = 1

    def phase(self, rank: int) -> Optional[str]:
        """The phase a rank has announced and not left yet."""
        if not self._word(rank, _IN_PHASE):
            return None
        return self._read(self._lines + rank * _RANK_BYTES + _PHASE, _PHASE_BYTES)

    def _word(self, rank: int, word: int) -> int:
        return self._ints[(self._lines + rank * _RANK_BYTES) // 4 + word]

    def _write(self, first: int, text: str, limit: int) -> None:
        # Length and text in one copy: a reader may see a torn text, never one past the field.
        data = text.encode("utf-8", "replace")[: limit - 2]
        self._view[first : first + 2 + len(data)] = len(data).to_bytes(2, "little") + data

    def _read(self, first: int, limit: int) -> str:
        length = min(int.from_bytes(self._view[first : first + 2], "little"), limit - 2)
        return bytes(self._view[first + 2 : first + 2 + length]).decode("utf-8", "replace")

"""The beginning of every collective of a ``GeneralCommunicator``: signatures and short data meet.

Each rank shows one record of a fixed length: what it means to do, a number, and as much of its data
as fits. So ranks that disagree find out before anything is moved whose length they disagree about,
which other libraries answer by hanging or ending the process; and what is short costs one round.
"""

from __future__ import annotations

from time import perf_counter
from typing import List, Sequence, Tuple

import numpy as np

from unified_ipu.comms.signature import TEXT_BYTES, Signature, describe_mismatch
from unified_ipu.comms.wire import Waiting, Wire
from unified_ipu.errors import CollectiveError

RECORD_BYTES = 4096
_NOTE_BYTES = 128
_NUMBERS = 6  # digest, number, bytes of data, of text, of note, collectives so far
_TEXT = 8 * _NUMBERS
_NOTE = _TEXT + TEXT_BYTES
_DATA = 512  # aligned for every dtype
INLINE_BYTES = RECORD_BYTES - _DATA
_PIECE_BYTES = 2**24
_NOTHING = np.empty(0, np.uint8)


class Exchange:
    """One rank's place in a group, kept in step over errors.

    A collective is ``begin``, any number of transfers, ``finish``. One that all ranks refuse leaves
    them in step; one that is interrupted does not, so the next ``begin`` is refused.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.waiting_seconds = 0.0
        self.note = ""
        self._number = 0
        self._inside = ""
        self._last = ""
        self._closed = False
        self._notes: List[str] = [""] * len(wire.members)

    def begin(
        self, signature: Signature, number: int = 0, data: np.ndarray = _NOTHING
    ) -> Tuple[List[int], List[np.ndarray]]:
        """Compare signatures and exchange data.

        Args:
            signature: What this rank means; must not depend on the length of ``data``.
            number: One integer the others get beside.
            data: ``[n]`` uint8; n may differ between ranks.

        Returns:
            Numbers and data, by rank.

        Raises:
            CollectiveError: If ranks disagree, one of them cannot do it, or one is lost.
        """
        if self._inside or self._closed:
            self._refuse(signature)
        self.wire.check()
        self._inside = signature.text
        self._number += 1
        record = self._record(signature, number, data)
        started = perf_counter()
        try:
            table = self.wire.gather(record, self.waiting())
            self.waiting_seconds += perf_counter() - started
            heads = [row[:_TEXT].view(np.int64) for row in table]
            self._notes = [_text(row, _NOTE, int(head[4])) for row, head in zip(table, heads)]
            self._compare(signature, table, heads)
        except CollectiveError:
            self._inside = ""
            raise
        lengths = [int(head[2]) for head in heads]
        short = [row[_DATA : _DATA + length] for row, length in zip(table, lengths)]
        return [int(head[1]) for head in heads], self._complete(short, lengths, data)

    def begin_elsewhere(self, signature: Signature) -> int:
        """Count a collective of these ranks that moves its data another way; ``finish`` ends it.

        Whether anyone has given up is for that way to find out.

        Returns:
            Its number.

        Raises:
            CollectiveError: If a collective was interrupted before.
        """
        if self._inside or self._closed:
            self._refuse(signature)
        self._inside = signature.text
        self._number += 1
        return self._number

    def waiting(self) -> Waiting:
        """What this rank is in now."""
        return Waiting(f"{self._inside} (collective {self._number})", self._number, self._describe)

    def message(self, operation: str) -> Waiting:
        """A message, which is no collective."""
        return Waiting(operation, 0, self._describe)

    def finish(self) -> None:
        """End the collective."""
        self._last = self._inside
        self._inside = ""

    def close(self) -> bool:
        """Refuse everything from now on; whether it was open."""
        was_open, self._closed = not self._closed, True
        return was_open

    def _record(self, signature: Signature, number: int, data: np.ndarray) -> np.ndarray:
        record = np.zeros(RECORD_BYTES, np.uint8)
        note = self.note.encode("utf-8", "replace")[:_NOTE_BYTES]
        text = signature.data
        record[:_TEXT].view(np.int64)[:] = [
            signature.digest,
            number,
            data.size,
            len(text),
            len(note),
            self._number,
        ]
        record[_TEXT : _TEXT + len(text)] = np.frombuffer(text, np.uint8)
        record[_NOTE : _NOTE + len(note)] = np.frombuffer(note, np.uint8)
        head = data[:INLINE_BYTES]
        record[_DATA : _DATA + head.size] = head
        return record

    def _compare(
        self, signature: Signature, table: Sequence[np.ndarray], heads: Sequence[np.ndarray]
    ) -> None:
        if any((head[0], head[5]) != (signature.digest, self._number) for head in heads):
            texts = {
                member: _text(row, _TEXT, int(head[3]))
                for member, row, head in zip(self.wire.members, table, heads)
            }
            raise CollectiveError(describe_mismatch(self._number, texts))
        if signature.problem:
            raise CollectiveError(signature.text)

    def _complete(
        self, short: List[np.ndarray], lengths: Sequence[int], mine: np.ndarray
    ) -> List[np.ndarray]:
        """The whole data of each rank, of which the first bytes are there."""
        longest = max(lengths)
        if longest <= INLINE_BYTES:
            return short
        results = [np.empty(length, np.uint8) for length in lengths]
        for result, part in zip(results, short):
            result[:INLINE_BYTES] = part[:INLINE_BYTES]
        if min(lengths) == longest:
            for first in range(INLINE_BYTES, longest, _PIECE_BYTES):
                stop = first + _PIECE_BYTES
                pieces = self.wire.gather(mine[first:stop], self.waiting())
                for result, piece in zip(results, pieces):
                    result[first:stop] = piece
            return results
        self._spread(results, mine)
        return results

    def _spread(self, results: Sequence[np.ndarray], mine: np.ndarray) -> None:
        """Fill in what is missing of arrays of different lengths, each from its rank."""
        for rank, result in enumerate(results):
            rest = result[INLINE_BYTES:]
            if rank == self.wire.rank:
                rest[...] = mine[INLINE_BYTES:]
            if rest.size:
                self.wire.broadcast(rest, rank, self.waiting())

    def _describe(self, rank: int) -> str:
        number = self._number - 1 if self._inside else self._number
        text = "it has entered no collective yet"
        if number and self._inside:
            text = f"it never entered collective {self._number}, its last was {number}"
        elif number:
            text = f"its last collective was {number}"
        if number and self._last:
            text = f"{text}, {self._last}"
        note = self._notes[rank]
        return f'{text}, last note "{note}"' if note else text

    def _refuse(self, signature: Signature) -> None:
        if self._closed:
            raise CollectiveError(f"{signature.text}: this communicator is closed")
        self.wire.check()
        raise CollectiveError(
            f"{signature.text}: {self._inside} was interrupted before, so the ranks are out of "
            "step; end the job, or abort() so that the others end too"
        )


def _text(row: np.ndarray, first: int, length: int) -> str:
    return row[first : first + length].tobytes().decode("utf-8", "replace")

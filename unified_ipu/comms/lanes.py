"""The shared memory of one group of ranks: flags, signatures and staging areas.

Every rank writes its own lane only. A lane begins with one 128-byte line: the flag that counts
barriers, the mark of having left, how many collectives were entered, and for odd and even
collectives the digest and one number. A rank that writes for collective n+2 has passed the first
barrier of n+1, so nobody still reads what it wrote for n.

A barrier is one counter to which every rank adds 1, and on which it sleeps until all have: each
rank is woken once. (Sleeping on the flag of each late peer in turn woke it up to ``size - 1``
times.) The flags say who is late. Three counters take turns: who comes to barrier n knows that all
have left n-2, so its counter can be zeroed for n+1.
"""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

from unified_ipu.comms.lateness import Stall
from unified_ipu.comms.segment import PAGE_BYTES, Segment, round_up
from unified_ipu.comms.shares import Shares
from unified_ipu.comms.signature import TEXT_BYTES, Signature, describe_mismatch
from unified_ipu.comms.watch import Flag, Watch, wrapped
from unified_ipu.errors import CollectiveError

_LINE_BYTES = 128
_WORDS = _LINE_BYTES // 4
_LONGS = _LINE_BYTES // 8
_ENTERED = 1  # 64-bit words of a line; word 0 holds the flag and the mark of having left
_DIGEST = 2  # digest and number of even collectives, then those of odd ones
_TEXT_SLOT = TEXT_BYTES + 2
NUM_STAGES = 3
_NUM_COUNTERS = 3
_MANY_RANKS = 16
_STAGE_BYTES = 2**20
_STAGE_BYTES_OF_MANY = 2**18


def stage_bytes(size: int) -> int:
    """Bytes of one staging area of a rank in a group of ``size``."""
    return _STAGE_BYTES if size <= _MANY_RANKS else _STAGE_BYTES_OF_MANY


class Lanes:
    """Barriers of one rank in its group, and what it shows the others at each."""

    def __init__(
        self, segment: Segment, offset: int, watch: Watch, rank: int, members: Sequence[int]
    ) -> None:
        self.rank = rank
        self.size = len(members)
        self._members = tuple(members)
        self._watch = watch
        self._view, self._ints, self._longs = segment.view, segment.ints, segment.longs
        self._first_long = offset // 8
        self._my_long = offset // 8 + rank * _LONGS
        self._texts = offset + self.size * _LINE_BYTES
        self._mail = self._texts + self.size * 2 * _TEXT_SLOT
        self._counters = [
            Flag(segment.ints, byte // 4, segment.address + byte)
            for byte in (
                offset + _counters_offset(self.size) + _LINE_BYTES * index
                for index in range(_NUM_COUNTERS)
            )
        ]
        self._turn = 0
        self._address = segment.address
        self._flags = [
            Flag(segment.ints, offset // 4 + peer * _WORDS, segment.address + offset + peer * 128)
            for peer in range(self.size)
        ]
        self._my_flag = self._flags[rank]
        self._digests = [self._first_long + peer * _LONGS + _DIGEST for peer in range(self.size)]
        self._next = 1
        self._number = 0
        self._written: List[int] = [0, 0]
        self._operation = ""
        self.stage_bytes = stage_bytes(self.size)
        self.stages = self._build_stages(segment, offset)
        self.shares = Shares(
            segment,
            offset + _shares_offset(self.size),
            watch,
            rank=rank,
            size=self.size,
            stall=self._stall_for,
        )
        watch.wake_on_abort([counter.address for counter in self._counters])

    @staticmethod
    def num_bytes(size: int) -> int:
        """Bytes the lanes of ``size`` ranks take, from a page boundary."""
        return _shares_offset(size) + round_up(Shares.num_bytes(size), PAGE_BYTES)

    def enter(self, signature: Signature, number: int) -> None:
        """Begin a collective: show what it is, and meet.

        Args:
            signature: What this rank means.
            number: One integer the others get to see.

        Raises:
            CollectiveError: If the ranks disagree, or the signature carries a problem.
        """
        self._number += 1
        count = self._number
        slot = self._my_long + _DIGEST + 2 * (count & 1)
        self._longs[slot] = signature.digest
        self._longs[slot + 1] = number
        if self._written[count & 1] != signature.digest:
            self._written[count & 1] = signature.digest
            first = self._texts + (2 * self.rank + (count & 1)) * _TEXT_SLOT
            text = len(signature.data).to_bytes(2, "little") + signature.data
            self._view[first : first + len(text)] = text
        self._longs[self._my_long + _ENTERED] = count
        self._operation = signature.text
        self.meet()
        parity = 2 * (count & 1)
        for index in self._digests:
            if self._longs[index + parity] != signature.digest:
                raise CollectiveError(self._mismatch())
        if signature.problem:
            raise CollectiveError(signature.text)

    def numbers(self) -> List[int]:
        """What every rank gave as its number to the collective entered last."""
        parity = 2 * (self._number & 1) + 1
        return [self._longs[index + parity] for index in self._digests]

    def meet(self) -> None:
        """Return once every rank has come here.

        Raises:
            CollectiveError: If one of them has given up, died, left or is too late.
        """
        ints, counter = self._ints, self._counters[self._turn]
        self._turn = (self._turn + 1) % _NUM_COUNTERS
        if not self.rank:
            ints[self._counters[self._turn].index] = 0
        ints[self._my_flag.index] = self._next
        self._next = wrapped(self._next + 1)
        counter.add(1, self.size)
        if ints[counter.index] != self.size:
            self._watch.wait(counter, self.size, self.stall)

    def mail_flag(self, source: int, target: int) -> Flag:
        """The word in which ``source`` shows its mailbox for ``target``: descriptor + 1."""
        byte = self._mail + 4 * (source * self.size + target)
        return Flag(self._ints, byte // 4, self._address + byte)

    def leave(self) -> None:
        """Say that this rank will not come again."""
        self._ints[self._my_flag.index + 1] = 1

    def stall_of(self, peer: int, operation: str) -> Stall:
        """One rank that this one waits for outside a barrier."""
        left = (self._members[peer],) if self._ints[self._flags[peer].index + 1] else ()
        details = {self._members[peer]: self.describe(peer)}
        return Stall(operation, (self._members[peer],), left, details, reports=True)

    def stall(self) -> Stall:
        """Who has not come to the barrier this rank waits at."""
        wanted = wrapped(self._next - 1)
        return self._stall_for(
            [
                peer
                for peer, flag in enumerate(self._flags)
                if self._ints[flag.index] not in {wanted, self._next}
            ]
        )

    def _stall_for(self, late: List[int]) -> Stall:
        gone = [peer for peer in late if self._ints[self._flags[peer].index + 1]]
        arrived = [peer for peer in range(self.size) if peer not in late]
        return Stall(
            operation=f"{self._operation} (collective {self._number})",
            missing=tuple(self._members[peer] for peer in late),
            left=tuple(self._members[peer] for peer in gone),
            details={self._members[peer]: self.describe(peer) for peer in late},
            reports=bool(arrived) and arrived[0] == self.rank,
        )

    def describe(self, peer: int) -> str:
        """What a rank of the group has entered last, in words."""
        entered = self._longs[self._first_long + peer * _LONGS + _ENTERED]
        if not entered:
            return "it has entered no collective yet"
        text = self._text(peer, entered)
        if entered >= self._number:
            return f"it is inside collective {entered}, {text}"
        return f"it never entered collective {self._number}, its last was {entered}, {text}"

    def _mismatch(self) -> str:
        texts = {
            self._watch.names[member]: self._text(peer, self._number)
            for peer, member in enumerate(self._members)
        }
        return describe_mismatch(self._number, texts)

    def _text(self, peer: int, number: int) -> str:
        first = self._texts + (2 * peer + (number & 1)) * _TEXT_SLOT
        length = min(int.from_bytes(self._view[first : first + 2], "little"), TEXT_BYTES)
        return bytes(self._view[first + 2 : first + 2 + length]).decode("utf-8", "replace")

    def _build_stages(self, segment: Segment, offset: int) -> List[List[np.ndarray]]:
        length = self.stage_bytes
        first = offset + _stage_offset(self.size)
        areas = [
            segment.array[first + length * index : first + length * (index + 1)]
            for index in range(NUM_STAGES * self.size)
        ]
        return [areas[NUM_STAGES * peer : NUM_STAGES * (peer + 1)] for peer in range(self.size)]


def _counters_offset(size: int) -> int:
    return round_up(size * (_LINE_BYTES + 2 * _TEXT_SLOT) + 4 * size * size, _LINE_BYTES)


def _stage_offset(size: int) -> int:
    return round_up(_counters_offset(size) + _NUM_COUNTERS * _LINE_BYTES, PAGE_BYTES)


def _shares_offset(size: int) -> int:
    return _stage_offset(size) + size * NUM_STAGES * stage_bytes(size)

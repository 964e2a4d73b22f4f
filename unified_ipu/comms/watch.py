"""Waiting for another rank, and what is done when it does not come.

A wait looks at the flag, yields a few times if every rank can have a core, then sleeps in the
kernel in slices of 0.1 s, and of 0.25 s once it has lasted a second. After each slice it looks
whether someone has given up, died or left, reports who is late and why, and ends the job at the
deadline. Waking a core that fell asleep takes longer than a small collective, so a few yields pay;
with more ranks than cores they do not: on a busy machine the scheduler then serves others first
(4 ranks on 2 cores were three times slower). Rejected: long spinning (ranks packed on one core burn
whole time slices) and a thread that watches (a slice is soon enough).
"""

from __future__ import annotations

import os
import select
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Set

from unified_ipu.comms.board import KIND_LOST, Board
from unified_ipu.comms.dump import has_ended
from unified_ipu.comms.futex import (
    WAIT_SLICE_SECONDS,
    futex_add,
    futex_wait,
    futex_wake,
    open_pidfd,
)
from unified_ipu.comms.lateness import Lateness, Stall
from unified_ipu.errors import CollectiveError

_YIELDS = 20
_PATIENT_AFTER_SECONDS = 1.0
_HALF = 2**31
_FULL = 2**32


def wrapped(number: int) -> int:
    """``number`` as a signed 32-bit word."""
    return (number + _HALF) % _FULL - _HALF


def is_reached(seen: int, wanted: int) -> bool:
    """Whether a flag that counts up and wraps around has come to ``wanted``."""
    return (seen - wanted) % _FULL < _HALF


@dataclass(frozen=True)
class Flag:
    """One counter in shared memory, with one writer or as many as add to it.

    Args:
        words: The segment's 32-bit words.
        index: Which of them.
        address: Its address in this process.
    """

    words: memoryview
    index: int
    address: int

    def post(self, value: int) -> None:
        """Store the value in one store and wake those who wait for it."""
        self.words[self.index] = value
        futex_wake(self.address)

    def add(self, amount: int, total: int) -> None:
        """Add, and wake those who wait for it if that makes it ``total``."""
        futex_add(self.address, amount, total)


class Watch:
    """Waits of one rank, over all communicators it has in one world.

    Args:
        board: Of the world.
        timeout_seconds: How long a rank may be late.
        stall_report_seconds: After how long a late rank is logged.
        names: What the ranks are called in messages, where this world is a part of a larger one.
    """

    def __init__(
        self,
        board: Board,
        *,
        timeout_seconds: float,
        stall_report_seconds: float,
        names: Optional[Sequence[int]] = None,
    ) -> None:
        self.board = board
        self.names = tuple(range(board.size) if names is None else names)
        self.look_also: Optional[Callable[[Sequence[int]], None]] = None
        """Called with the names of late ranks whenever a wait has been long; may raise."""
        self.timeout_seconds = timeout_seconds
        self.stall_report_seconds = stall_report_seconds
        self.waiting_seconds = 0.0
        self._yields = _YIELDS if board.size <= (os.cpu_count() or 1) else 0
        self._addresses: List[int] = []
        self._phases: List[str] = []
        self._kept: List[int] = []
        self._ranks: Dict[int, int] = {}
        self._unwatched: Dict[int, int] = {}
        self._pids: Dict[int, int] = {}
        self._poll = select.poll()

    def follow(self, pids: Sequence[int]) -> None:
        """Notice from now on when one of the other processes ends."""
        for rank, pid in enumerate(pids):
            self._pids[rank] = pid
            if pid != os.getpid():
                self._follow(rank, pid)

    def _follow(self, rank: int, pid: int) -> None:
        pidfd = open_pidfd(pid)
        if pidfd >= 0:
            self._ranks[pidfd] = rank
            self._poll.register(pidfd, select.POLLIN)
        else:
            # Gone already, or a kernel before 5.3, or a container that forbids the call.
            self._unwatched[rank] = pid

    def wake_on_abort(self, addresses: Sequence[int]) -> None:
        """Words on which others may sleep while this rank gives up."""
        self._addresses.extend(addresses)

    def abort(self, kind: int, rank: int, text: str) -> None:
        """Give up for all ranks, and wake those who wait."""
        self.board.abort(kind, rank, text)
        for address in self._addresses:
            futex_wake(address)

    def check(self) -> None:
        """Raise if anyone has given up.

        Raises:
            CollectiveError: The same on all ranks.
        """
        if self.board.aborted:
            raise self.board.error()

    def wait(self, flag: Flag, wanted: int, stalled: Callable[[], Stall]) -> None:
        """Return once the flag has come to ``wanted``; ``stalled`` is asked only when it is late.

        Raises:
            CollectiveError: If any rank has given up, died, left or is too late.
        """
        words, index = flag.words, flag.index
        started = looked = perf_counter()
        lateness = Lateness(self, started)
        yields = self._yields
        while True:
            seen = words[index]
            if is_reached(seen, wanted):
                break
            try:
                self.check()
                if yields:
                    yields -= 1
                    os.sched_yield()
                    continue
                # The kernel compares: no wake-up is lost.
                futex_wait(flag.address, seen, long=looked - started > _PATIENT_AFTER_SECONDS)
                now = perf_counter()
                if now - looked >= WAIT_SLICE_SECONDS / 2:
                    lateness.look(now, stalled)
                    looked = now
            except CollectiveError:
                # Who came and then gave up has done its part here: this rank comes to the same
                # result, and to the same error if that was the reason.
                if is_reached(words[index], wanted):
                    break
                raise
        self.waiting_seconds += perf_counter() - started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce a phase; an inner one hides the outer one while it lasts."""
        self._phases.append(name)
        self.board.announce(name)
        try:
            yield
        finally:
            self._phases.pop()
            self.board.announce(self._phases[-1] if self._phases else None)

    def keep(self, fd: int) -> None:
        """Close a descriptor at ``close``."""
        self._kept.append(fd)

    def close(self) -> None:
        """Stop following processes."""
        while self._kept:
            os.close(self._kept.pop())
        for pidfd in self._ranks:
            os.close(pidfd)
        self._ranks.clear()
        self._poll = select.poll()

    def dead(self) -> Set[int]:
        """World ranks whose process has ended."""
        ended = {self._ranks[fd] for fd, _ in self._poll.poll(0)}
        ended.update(rank for rank, pid in self._unwatched.items() if has_ended(pid))
        return ended

    def check_peers(self, dead: Set[int], stall: Stall) -> None:
        """Give up if a rank is waited for that cannot come any more.

        Raises:
            PeerLostError: The same on all ranks.
        """
        for rank in sorted(dead):
            if not self.board.has_left(rank):
                self._lose(rank, f"its process {self._pids[rank]} has ended", stall)
        for rank in stall.missing:
            if rank in stall.left or rank in dead or self.board.has_left(rank):
                self._lose(rank, "it has left (closed its communicator)", stall)
        self.check()

    def _lose(self, rank: int, cause: str, stall: Optional[Stall] = None) -> None:
        where = ""
        if stall is not None:
            detail = stall.details.get(rank, "")
            where = f" while others wait in {stall.operation}" + (f"; {detail}" if detail else "")
        note = self.board.read_note(rank)
        said = f'; its last note: "{note}"' if note else ""
        self.abort(KIND_LOST, rank, f"rank {self.names[rank]} is lost: {cause}{where}{said}")

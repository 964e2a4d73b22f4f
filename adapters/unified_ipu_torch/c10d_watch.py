"""Waiting for other ranks over c10d, and what is done when they do not come.

Gloo's own time-outs break its connections and name nobody, so a wait is cut into slices. After
each one this rank says where it is, looks who is not there yet, who has given up, died or left,
reports, and ends the job at the deadline.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

from unified_ipu.comms import Waiting
from unified_ipu_torch.c10d_board import Board

logger = logging.getLogger("unified_ipu.comms")

SLICE_SECONDS = 0.1
WORLD = "world"
_BLAME_SECONDS = 2.0  # for others to say where they are, once a connection broke


class Watch:
    """Waits of one rank in one group.

    Args:
        board: Of the world.
        group: Name of the group.
        members: Ranks of the world, by rank of the group.
        timeout_seconds: How long a rank may be late.
        stall_report_seconds: After how long a late rank is logged.
    """

    def __init__(
        self,
        board: Board,
        group: str,
        members: Sequence[int],
        *,
        timeout_seconds: float,
        stall_report_seconds: float,
    ) -> None:
        self.board = board
        self.group = group
        self.members = tuple(members)
        self.timeout_seconds = timeout_seconds
        self.stall_report_seconds = stall_report_seconds
        self._seen = time.monotonic()
        self._look_also: Optional[Callable[[Sequence[int]], None]] = None
        self._others = [
            rank for rank, member in enumerate(self.members) if member != self.board.rank
        ]

    def finish(self, work: Any, waiting: Waiting) -> None:
        """Wait for gloo's work.

        Raises:
            CollectiveError: If any rank has given up, died, left or is too late.
        """
        try:
            self._wait(lambda seconds: _is_done(work, seconds), waiting, self._others)
        except RuntimeError as error:
            self._blame(error, waiting)
        self._seen = time.monotonic()

    def check(self) -> None:
        """Raise if anyone has given up, as far as that can be known for nothing.

        The store is asked only when this rank was away for as long as others wait before they may
        give up: who has given up enters no collective, and then the others ask.

        Raises:
            CollectiveError: The same on all ranks.
        """
        if self.board.gave_up or time.monotonic() - self._seen > SLICE_SECONDS / 2:
            self.board.check()

    def look_also(self, look: Callable[[Sequence[int]], None]) -> None:
        """Call ``look`` with the late ranks of the world whenever a wait has been long."""
        self._look_also = look

    def await_key(self, key: str, source: int, waiting: Waiting) -> None:
        """Wait for a key that one rank of the group sets."""
        self._wait(lambda seconds: self.board.await_key(key, seconds), waiting, [source])

    def _wait(
        self, attempt: Callable[[float], bool], waiting: Waiting, awaited: Sequence[int]
    ) -> None:
        if attempt(SLICE_SECONDS):
            return
        if waiting.number:
            self.board.arrive(self.group, waiting.number, waiting.operation)
        started = last = time.monotonic()
        counted, report_at = SLICE_SECONDS, self.stall_report_seconds
        while True:
            late = self._late(waiting, awaited)
            now = time.monotonic()
            if late and any(self.board.phase(self.members[rank]) is None for rank in late):
                counted += now - last
            last = now
            if counted >= self.timeout_seconds and late:
                self._give_up(late, waiting)
            waited = now - started + SLICE_SECONDS
            if waited >= report_at and late:
                report_at = 2 * waited
                self._report(late, waiting, waited)
            if attempt(SLICE_SECONDS):
                return

    def _late(self, waiting: Waiting, awaited: Sequence[int]) -> List[int]:
        """Ranks of the group that are waited for, after a look whether they can still come."""
        board = self.board
        # Also who is not waited for here: ranks of another group may wait for it, and for this one.
        gone = [member for member in range(board.size) if board.is_dead(member)]
        expected = [self.members[rank] for rank in awaited]
        late = [
            rank
            for rank in awaited
            if not waiting.number
            or board.arrived(self.group, self.members[rank])[0] < waiting.number
        ]
        left = [rank for rank in late if board.has_left(self.members[rank], self.group)]
        board.check()
        for member in gone:
            if not board.has_left(member, self.group if member in expected else WORLD):
                self._lose(member, f"its {board.describe(member)} has ended", waiting)
        for rank in left:
            cause = "it has left (closed its communicator)"
            self._lose(self.members[rank], cause, waiting)
        if self._look_also is not None:
            self._look_also([self.members[rank] for rank in late])
        return late

    def _lose(self, member: int, cause: str, waiting: Waiting) -> None:
        text = f"rank {member} is lost: {cause} while others wait in {waiting.operation}"
        if member in self.members:
            text = f"{text}; {waiting.describe(self.members.index(member))}"
        self.board.abort("lost", text)
        self.board.check()

    def _give_up(self, late: Sequence[int], waiting: Waiting) -> None:
        parts = "; ".join(self._describe(rank, waiting) for rank in late)
        self.board.abort(
            "timeout",
            f"{_names([self.members[rank] for rank in late])} did not come to "
            f"{waiting.operation} within {self.timeout_seconds:g} s ({parts}); find out what "
            "kept it, or raise comms.timeout_seconds",
        )
        self.board.check()

    def _describe(self, rank: int, waiting: Waiting) -> str:
        member = self.members[rank]
        text = f"rank {member}: {waiting.describe(rank)}"
        phase = self.board.phase(member)
        return text if phase is None else f"{text}, announced phase: {phase}"

    def _report(self, late: Sequence[int], waiting: Waiting, waited: float) -> None:
        there = [rank for rank in range(len(self.members)) if rank not in late]
        if self.members[there[0]] != self.board.rank and waiting.number:
            return  # the first rank that waits says it for all
        logger.warning(
            "waiting %.3g s in %s for %s",
            waited,
            waiting.operation,
            "; ".join(self._describe(rank, waiting) for rank in late),
        )

    def _blame(self, error: RuntimeError, waiting: Waiting) -> None:
        """A connection broke: find out whose, and end the job for all."""
        board = self.board
        board.arrive(self.group, waiting.number, waiting.operation)
        deadline = time.monotonic() + _BLAME_SECONDS
        late: List[int] = list(self._others)
        while late and time.monotonic() < deadline:
            late = self._late(waiting, late)
            time.sleep(SLICE_SECONDS / 5)
        cause = str(error).splitlines()[0]
        named = _names([self.members[rank] for rank in late]) if late else "another rank"
        board.abort("lost", f"the connection to {named} broke in {waiting.operation}: {cause}")
        board.check()


def _is_done(work: Any, seconds: float) -> bool:
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it ended meanwhile, or this raises why it failed
    return True


def _names(ranks: Sequence[int]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(str(rank) for rank in ranks)}"

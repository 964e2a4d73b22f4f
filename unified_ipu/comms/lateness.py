"""What a rank does while another one is late: look whether it can come, report it, give up."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, List, Sequence

from unified_ipu.comms.board import KIND_TIMEOUT
from unified_ipu.comms.dump import process_state, read_stack
from unified_ipu.comms.signature import name_ranks

if TYPE_CHECKING:
    from unified_ipu.comms.watch import Watch

logger = logging.getLogger("unified_ipu.comms")

_MOST_STACKS = 4


@dataclass(frozen=True)
class Stall:
    """Who keeps a collective from going on.

    Args:
        operation: What this rank is waiting in.
        missing: World ranks that have not come.
        left: Those of them that have closed the communicator.
        details: What each missing rank did last, by world rank.
        reports: Whether it is this rank's turn to log.
    """

    operation: str
    missing: Sequence[int]
    left: Sequence[int]
    details: Dict[int, str]
    reports: bool


class Lateness:
    """The clock of one wait: when to report, when to give up."""

    def __init__(self, watch: Watch, now: float) -> None:
        self._watch = watch
        self._last = self._started = now
        self._counted = 0.0
        self._report_at = watch.stall_report_seconds

    def look(self, now: float, stalled: Callable[[], Stall]) -> None:
        """Look why the wait is long, after a slice of it.

        Raises:
            CollectiveError: If anyone has given up, died or left, or is too late.
        """
        watch, board = self._watch, self._watch.board
        dead = watch.dead()  # before the marks of having left, which are set before the end
        stall = stalled()
        watch.check_peers(dead, stall)
        if watch.look_also is not None:
            watch.look_also(self._named(stall.missing))
        if not stall.missing:
            return
        if any(board.phase(rank) is None for rank in stall.missing):
            self._counted += now - self._last
        self._last = now
        waited = now - self._started
        if self._counted >= watch.timeout_seconds:
            watch.abort(KIND_TIMEOUT, stall.missing[0], self._timeout_text(stall))
            watch.check()
        if waited >= self._report_at:
            self._report_at = 2 * waited
            if stall.reports:
                self._report(stall, waited)

    def _timeout_text(self, stall: Stall) -> str:
        parts = "; ".join(self._describe(rank, stall) for rank in stall.missing)
        return (
            f"{name_ranks(self._named(stall.missing))} did not come to {stall.operation} within "
            f"{self._watch.timeout_seconds:g} s ({parts}); find out what kept it, or raise "
            "comms.timeout_seconds"
        )

    def _describe(self, rank: int, stall: Stall) -> str:
        board = self._watch.board
        parts = [
            f"rank {self._watch.names[rank]}: {stall.details.get(rank) or 'nothing entered yet'}"
        ]
        note = board.read_note(rank)
        if note:
            parts.append(f'last note "{note}"')
        phase = board.phase(rank)
        if phase is not None:
            parts.append(f"announced phase: {phase}")
        return ", ".join(parts)

    def _report(self, stall: Stall, waited: float) -> None:
        board = self._watch.board
        for rank in stall.missing[:_MOST_STACKS]:
            pid = board.pid(rank)
            logger.warning(
                "waiting %.3g s in %s for %s; process %d, state %s\n%s",
                waited,
                stall.operation,
                self._describe(rank, stall),
                pid,
                process_state(pid) or "unknown",
                read_stack(pid, board.dump_fd(rank)),
            )
        if len(stall.missing) > _MOST_STACKS:
            late = self._named(stall.missing[_MOST_STACKS:])
            logger.warning("also late: %s", name_ranks(late))

    def _named(self, ranks: Sequence[int]) -> List[int]:
        return [self._watch.names[rank] for rank in ranks]

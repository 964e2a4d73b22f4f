"""Watching over the ranks: the first failure ends all of them, and so does a signal."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Dict, List, Optional, Sequence

from unified_ipu.launch.failure import Failure
from unified_ipu.launch.group import end_groups
from unified_ipu.launch.process import Event, RankProcess

SETTLE_SECONDS = 0.8  # a rank that lost a peer waits for the peer's own report
LAST_WORDS_SECONDS = 2.0  # for a rank that has reported and is on its way out
INTERRUPT_SECONDS = 5.0  # from ^C to SIGTERM
KILL_SECONDS = 3.0  # from SIGTERM to SIGKILL
SWEEP_SECONDS = 1.0  # for what a rank has left running
STUCK_SECONDS = 2.0  # from SIGKILL to giving up on a process in the kernel


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        failure: The first cause, or None.
        signum: The signal that ended the run, or None.
        stuck: Process ids that could not be ended.
    """

    failure: Optional[Failure] = None
    signum: Optional[int] = None
    stuck: Sequence[int] = ()

    @property
    def exit_status(self) -> int:
        """0, the first cause's own status, or 128 plus the number of the signal."""
        if self.signum is not None:
            return 128 + self.signum
        return 0 if self.failure is None else self.failure.exit_status


class Supervisor:
    """Waits for ranks, and ends them.

    Args:
        processes: In order of rank.
        events: What the processes report to, and signal handlers; a second signal means at once.
    """

    def __init__(self, processes: Sequence[RankProcess], events: SimpleQueue[Event]) -> None:
        self._processes = list(processes)
        self._events = events
        self._running: Dict[int, RankProcess] = {one.rank: one for one in processes}
        self._deadlines: Dict[str, float] = {}
        self._failure: Optional[Failure] = None
        self._signum: Optional[int] = None
        self._is_ending = False

    def wait(self) -> Outcome:
        """Return when no rank is left, nor anything that one of them has started."""
        stuck: List[int] = []
        try:
            while self._running and not self._is_due("abandon"):
                self._step()
        finally:
            stuck = end_groups([one.pid for one in self._processes], grace_seconds=SWEEP_SECONDS)
            for process in self._processes:
                if process.pid not in stuck:
                    process.close()
        return Outcome(self._failure, self._signum, stuck)

    def _step(self) -> None:
        try:
            kind, number = self._events.get(timeout=self._patience())
        except Empty:
            self._act()
        except KeyboardInterrupt:
            self._on_signal(signal.SIGINT)
        else:
            if kind == "signal":
                self._on_signal(number)
            elif kind == "report":
                self._on_failure(self._processes[number].failure)
            else:
                self._on_end(number)

    def _on_end(self, rank: int) -> None:
        process = self._running.pop(rank)
        process.end_of_reports()
        if process.status:
            self._on_failure(process.failure or Failure(rank, process.status))

    def _on_failure(self, failure: Optional[Failure]) -> None:
        if failure is None or self._is_ending:
            return
        if self._failure is None or (self._failure.is_consequence and not failure.is_consequence):
            self._failure = failure
        if self._failure.is_consequence:
            self._deadlines.setdefault("settle", time.monotonic() + SETTLE_SECONDS)
        else:
            self._end_others(self._failure.rank)

    def _end_others(self, rank: int) -> None:
        self._is_ending = True
        now = time.monotonic()
        self._deadlines = {
            "terminate": now + LAST_WORDS_SECONDS,
            "kill": now + KILL_SECONDS,
            "abandon": now + KILL_SECONDS + STUCK_SECONDS,
        }
        for process in self._running.values():
            if process.rank != rank:
                process.send_group(signal.SIGTERM)

    def _on_signal(self, signum: int) -> None:
        now = time.monotonic()
        if self._signum is not None:
            self._send_all(signal.SIGKILL)
            self._deadlines = {"abandon": now + STUCK_SECONDS}
            return
        self._signum = signum
        self._is_ending = True
        self._deadlines = {
            "terminate": now + INTERRUPT_SECONDS,
            "kill": now + INTERRUPT_SECONDS + KILL_SECONDS,
            "abandon": now + INTERRUPT_SECONDS + KILL_SECONDS + STUCK_SECONDS,
        }
        for process in self._running.values():
            process.send(signum)

    def _act(self) -> None:
        if self._is_due("settle"):
            del self._deadlines["settle"]
            if self._failure is not None:
                self._end_others(self._failure.rank)
        for name, signum in (("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
            if self._is_due(name):
                del self._deadlines[name]
                self._send_all(signum)

    def _send_all(self, signum: int) -> None:
        for process in self._running.values():
            process.send_group(signum)

    def _is_due(self, name: str) -> bool:
        return time.monotonic() >= self._deadlines.get(name, float("inf"))

    def _patience(self) -> Optional[float]:
        if not self._deadlines:
            return None
        return max(0.0, min(self._deadlines.values()) - time.monotonic())

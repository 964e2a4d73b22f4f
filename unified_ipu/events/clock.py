"""Where the time went: exclusive seconds by phase, whose sum is the wall time."""

from __future__ import annotations

from time import perf_counter
from typing import ContextManager, Dict, List, Sequence


class PhaseClock:
    """Adds up wall seconds by phase; an inner phase pauses the outer one.

    Time outside any phase counts as ``"other"``, so that the shares add up to the wall time since
    the clock was made. One clock belongs to one thread.
    """

    def __init__(self) -> None:
        self.current = Phase(self)
        self._phases: Dict[str, Phase] = {"other": self.current}
        self.outer: List[Phase] = []
        self.settled_at = perf_counter()

    def phase(self, name: str) -> ContextManager[None]:
        """Count the time inside as ``name``."""
        return self._phases.get(name) or self._made(name)

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count ``seconds`` that were booked under ``source`` under ``target`` instead."""
        for name, more in ((source, -seconds), (target, seconds)):
            phase = self._phases.get(name) or self._made(name)
            phase.seconds += more

    def seconds(self) -> Dict[str, float]:
        """Seconds by phase until now, of those that took any."""
        return self.since(())

    def mark(self) -> List[float]:
        """Begin a stretch of time for ``since``."""
        now = perf_counter()
        self.current.seconds += now - self.settled_at
        self.settled_at = now
        return [phase.seconds for phase in self._phases.values()]

    def since(self, mark: Sequence[float]) -> Dict[str, float]:
        """Seconds by phase from a mark until now, of those that took any."""
        spent = {}
        marked = len(mark)
        for index, (name, seconds) in enumerate(zip(self._phases, self.mark())):
            more = seconds - mark[index] if index < marked else seconds
            if more:
                spent[name] = more
        return spent

    def _made(self, name: str) -> Phase:
        phase = self._phases[name] = Phase(self)
        return phase


class Phase:
    """One phase as a context, which can be entered again inside itself.

    It is entered several times an update, beside kernels that empty the caches; so it settles the
    clock itself, without another call.
    """

    __slots__ = ("_clock", "seconds")

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self.seconds = 0.0

    def __enter__(self) -> None:
        clock, now = self._clock, perf_counter()
        outer = clock.current
        outer.seconds += now - clock.settled_at
        clock.settled_at = now
        clock.outer.append(outer)
        clock.current = self

    def __exit__(self, *_: object) -> None:
        clock, now = self._clock, perf_counter()
        self.seconds += now - clock.settled_at
        clock.settled_at = now
        clock.current = clock.outer.pop()

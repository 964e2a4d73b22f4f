"""Where the time went: exclusive seconds by phase, whose sum is the wall time."""

from __future__ import annotations

from time import perf_counter
from typing import ContextManager, Dict, List


class PhaseClock:
    """Adds up wall seconds by phase; an inner phase pauses the outer one.

    Time outside any phase counts as ``"other"``, so that the shares add up to the wall time since
    the clock was made. One clock belongs to one thread.
    """

    def __init__(self) -> None:
        self._seconds: Dict[str, float] = {}
        self._stack: List[str] = ["other"]
        self._phases: Dict[str, _Phase] = {}
        self._since = perf_counter()

    def phase(self, name: str) -> ContextManager[None]:
        """Count the time inside as ``name``."""
        phase = self._phases.get(name)
        if phase is None:
            phase = self._phases[name] = _Phase(self, name)
        return phase

    def enter(self, name: str) -> None:
        """Begin a phase; each ``enter`` needs its ``leave``."""
        self._settle()
        self._stack.append(name)

    def leave(self) -> None:
        """End the innermost phase."""
        self._settle()
        self._stack.pop()

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count ``seconds`` that were booked under ``source`` under ``target`` instead."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def seconds(self) -> Dict[str, float]:
        """Seconds by phase until now."""
        self._settle()
        return dict(self._seconds)

    def _settle(self) -> None:
        now = perf_counter()
        phase = self._stack[-1]
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now


class _Phase:
    """One phase as a context; it has no state, so it can be entered again inside itself.

    A class, since it is entered several times an update and a generator costs a microsecond more.
    """

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._clock.enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._clock.leave()

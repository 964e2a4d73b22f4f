"""The end of a fit that a callback asked for, agreed by all ranks."""

from __future__ import annotations

import numpy as np

from unified_ipu.comms import Communicator
from unified_ipu.events import PhaseClock
from unified_ipu.report import FitContext


class Stopping:
    """Asks all ranks at each call boundary whether one of them wants the fit to end; collective.

    Ranks without any callback of the user still take part, since another rank may have one.

    Args:
        context: Where callbacks of this rank leave their wish.
        communicator: Of all replicas.
        clock: The exchange is booked here.
        may_ask: Whether this rank has callbacks that may ask.
    """

    def __init__(
        self,
        context: FitContext,
        communicator: Communicator,
        *,
        clock: PhaseClock,
        may_ask: bool,
    ) -> None:
        self.reason = ""
        """Why the fit ends, the same on all ranks; empty as long as it goes on."""
        self._context = context
        self._communicator = communicator
        self._clock = clock
        self._is_possible = any(communicator.all_gather_value(may_ask))

    def is_agreed(self) -> bool:
        """Whether the fit ends here."""
        if self.reason or not self._is_possible:
            return bool(self.reason)
        if self._communicator.size == 1:
            self.reason = "".join(self._context.requests)
            return bool(self.reason)
        waited = self._communicator.waiting_seconds
        with self._clock.phase("communication"):
            self.reason = self._exchange()
        self._clock.move("communication", "waiting", self._communicator.waiting_seconds - waited)
        return bool(self.reason)

    def _exchange(self) -> str:
        # The usual answer is no, so only a flag goes round before the words do.
        mine = np.array([float(bool(self._context.requests))])
        if not self._communicator.all_reduce(mine, op="max", name="stop")[0]:
            return ""
        everyone = self._communicator.all_gather_value("".join(self._context.requests))
        asked = {rank: reason for rank, reason in enumerate(everyone) if reason}
        first = min(asked)
        all_alike = len(asked) == len(everyone) and len(set(everyone)) == 1
        return asked[first] if all_alike else f"{asked[first]} (asked by rank {first})"

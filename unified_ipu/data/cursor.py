"""One pass of one replica through its micro-batches, in order, some left out."""

from __future__ import annotations

from itertools import chain
from typing import Iterable, Optional

from unified_ipu.data.receipts import Receipts
from unified_ipu.data.schedule import Portion


class Cursor:
    """Where a replica stands in a pass, and what it received.

    Args:
        portions: Its micro-batches from here on.
        start: First position of the pass that counts.
        epoch: Of the loader.
    """

    def __init__(self, portions: Iterable[Portion] = (), start: int = 0, epoch: int = 0) -> None:
        self.receipts = Receipts()
        self.epoch = epoch
        self.start = start
        self.end = start
        """One past the last position that was handed out to any replica."""
        self.samples = 0
        """Samples of the pass, as far as known."""
        self.num_due = 0
        """Real rows that this replica should have received until now."""
        self.floor = 0
        """The first update that may still be read."""
        self.is_finished = False
        self._last_read = -1
        self._portions = iter(portions)
        self._next: Optional[Portion] = next(self._portions, None)

    def extend(self, portions: Iterable[Portion]) -> None:
        """Append micro-batches that were not known before."""
        self._portions = chain(self._portions, portions)
        if self._next is None:
            self._next = next(self._portions, None)

    def take(self, update: Optional[int] = None) -> Optional[Portion]:
        """Return the next micro-batch and step over it; None at the end (of ``update``)."""
        portion = self._next
        if portion is None or (update is not None and portion.update != update):
            return None
        self._next = next(self._portions, None)
        self._last_read = portion.update
        self.num_due += portion.real
        return portion

    def can_return_to(self, update: int) -> bool:
        """Whether nothing of ``update`` or later was read or left out yet."""
        return self._last_read < update and self.floor <= update

    def inherit(self, before: Cursor) -> None:
        """Carry on the tally of a pass that was broken off where this one goes on."""
        self.receipts, self.start = before.receipts, before.start

    def skip_to(self, update: int) -> int:
        """Leave out what is before ``update``; return how many real rows that were."""
        rows = 0
        while self._next is not None and self._next.update < update:
            self.receipts.skip(self._next)
            self.num_due += self._next.real
            rows += self._next.real
            self._next = next(self._portions, None)
        self.floor = max(self.floor, update)
        return rows

"""Work that the ranks of a group have in common: whoever is free takes the next item.

Each rank begins with a part of its own and then helps the others, from the ends of their parts. On
a core of its own that is a fixed division; where ranks share cores, those that run do the work of
those that do not, which find it done: with a fixed division all wait for whom the system serves
last. What is computed must not depend on who does it.

An item is taken by a spin lock that is only ever tried. Two stores take turns, and each is cleared
by rank 0 while the other is in use, when nobody looks at it any more.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Tuple

import numpy as np

from unified_ipu.comms.arrays import split_evenly
from unified_ipu.comms.futex import free_spinlock, take_spinlock
from unified_ipu.comms.lateness import Stall
from unified_ipu.comms.segment import Segment
from unified_ipu.comms.watch import Flag, Watch

MOST_ITEMS = 1024
_LINE_BYTES = 128
_ROUNDS = 2  # of work in one collective at most
_COUNTER_BYTES = _LINE_BYTES
_LOCKS_BYTES = 4 * MOST_ITEMS
_VALUES_BYTES = 8 * MOST_ITEMS
_ROUND_BYTES = _COUNTER_BYTES + _LOCKS_BYTES + _VALUES_BYTES

Work = Callable[[int], float]


class Shares:
    """The store of one group, as one rank sees it.

    Args:
        segment: Memory of the group.
        offset: Of this store in it, from a page boundary.
        watch: For waiting.
        rank: In the group.
        size: Of the group.
        stall: From the ranks that are late to what is said about them.
    """

    def __init__(
        self,
        segment: Segment,
        offset: int,
        watch: Watch,
        *,
        rank: int,
        size: int,
        stall: Callable[[List[int]], Stall],
    ) -> None:
        self._rank = rank
        self._size = size
        self._watch = watch
        self._stall = stall
        self._ints = segment.ints
        self._busy = [(offset + _LINE_BYTES * peer) // 4 for peer in range(size)]
        first = offset + _LINE_BYTES * size
        self._rounds = [
            _Round(segment, first + _ROUND_BYTES * index) for index in range(2 * _ROUNDS)
        ]
        self._orders: Dict[int, Tuple[int, ...]] = {}
        self._parity = 0
        self._left = 0
        if rank == 0:
            for each in self._rounds:
                each.clear()
        watch.wake_on_abort([each.counter.address for each in self._rounds])

    @staticmethod
    def num_bytes(size: int) -> int:
        """Bytes that the store of ``size`` ranks takes."""
        return size * _LINE_BYTES + 2 * _ROUNDS * _ROUND_BYTES

    def begin(self) -> None:
        """Begin the work of a collective; all ranks have entered it."""
        self._parity = 1 - self._parity
        self._left = _ROUNDS
        if not self._rank:
            for each in self._of(1 - self._parity):
                each.clear()

    def share(self, num_items: int, work: Work) -> np.ndarray:
        """Do items until none is left, and return when all are done, whoever did them.

        At most two rounds of it a collective, the same on all ranks.

        Args:
            num_items: At most ``MOST_ITEMS``.
            work: From the number of an item to a value.

        Returns:
            The values of all items, ``[num_items]`` float64; until the next collective.

        Raises:
            CollectiveError: If a rank that has taken an item gives up or is lost.
        """
        self._left -= 1
        current = self._of(self._parity)[self._left]
        mine, ints, counter = self._busy[self._rank], self._ints, current.counter
        done = 0
        for item in self._order(num_items):
            if current.take(item):
                ints[mine] = 1
                current.values[item] = work(item)
                done += 1
        if done:
            counter.add(done, num_items)
            ints[mine] = 0
        if ints[counter.index] != num_items:
            self._watch.wait(counter, num_items, self._late)
        return current.values[:num_items]

    def _late(self) -> Stall:
        return self._stall([peer for peer, word in enumerate(self._busy) if self._ints[word]])

    def _of(self, parity: int) -> List[_Round]:
        return self._rounds[_ROUNDS * parity : _ROUNDS * (parity + 1)]

    def _order(self, num_items: int) -> Tuple[int, ...]:
        known = self._orders.get(num_items)
        if known is None:
            parts = [range(*edges) for edges in split_evenly(num_items, self._size)]
            others = (*parts[self._rank + 1 :], *parts[: self._rank])
            order = list(parts[self._rank])
            for part in others:
                order.extend(reversed(part))
            known = self._orders[num_items] = tuple(order)
        return known


class _Round:
    """A counter of items done, a lock and a value for each."""

    def __init__(self, segment: Segment, offset: int) -> None:
        self.counter = Flag(segment.ints, offset // 4, segment.address + offset)
        self._ints = segment.ints
        self._locks = offset + _COUNTER_BYTES
        self._word = self._locks // 4
        self._address = segment.address + self._locks
        first = self._locks + _LOCKS_BYTES
        self.values = segment.array[first : first + _VALUES_BYTES].view(np.float64)
        self._free = free_spinlock()
        self._all = segment.array[self._locks : first].view(np.int32)

    def clear(self) -> None:
        """Put all items back."""
        self._ints[self.counter.index] = 0
        self._all.fill(self._free)

    def take(self, item: int) -> bool:
        """Whether the item was free and is the caller's now."""
        if self._ints[self._word + item] != self._free:
            return False
        return take_spinlock(self._address + 4 * item)

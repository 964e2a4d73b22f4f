"""Sums that travel round a ring of ranks, over any wire.

Every rank owns one share of the array. A partial sum of each share goes from rank to rank, each of
which adds its own part; then the finished shares go round once more. So every rank talks to its
neighbours only and sends as little as can be, and each share is added up once, whatever the timing:
share i in the order i, i + 1 and so on round the ring. All ranks end with the same bits.
"""

from __future__ import annotations

from typing import List

import numpy as np

from unified_ipu.comms.arrays import split_evenly
from unified_ipu.comms.wire import Waiting, Wire


class Ring:
    """Adds flat arrays over the ranks of a wire; keeps a scratch as long as one share.

    Args:
        wire: Between the ranks.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._scratch = np.empty(0, np.uint8)

    def add(self, array: np.ndarray, waiting: Waiting) -> None:
        """Overwrite a flat array with its sum over ranks."""
        rank, size = self._wire.rank, len(self._wire.members)
        shares = [array[first:stop] for first, stop in split_evenly(array.size, size)]
        for step in range(size - 1):
            mine = shares[(rank - step - 1) % size]
            partial = self._partial(mine)
            self._wire.shift(shares[(rank - step) % size], partial, waiting)
            np.add(partial, mine, out=mine)
        self._spread(shares, waiting)

    def _spread(self, shares: List[np.ndarray], waiting: Waiting) -> None:
        rank, size = self._wire.rank, len(shares)
        for step in range(size - 1):
            finished = shares[(rank + 1 - step) % size]
            self._wire.shift(finished, shares[(rank - step) % size], waiting)

    def _partial(self, like: np.ndarray) -> np.ndarray:
        if self._scratch.size < like.nbytes:
            self._scratch = np.empty(like.nbytes, np.uint8)
        partial: np.ndarray = self._scratch[: like.nbytes].view(like.dtype)
        return partial

"""Where a reducer's buffers lie in each rank's region, and which pieces this rank adds up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Sequence, Tuple

import numpy as np

from unified_ipu.comms.arrays import split_evenly
from unified_ipu.comms.kernels_numpy import stored_dtype
from unified_ipu.comms.segment import round_up

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

LINE_BYTES = 64
_CACHE_BYTES = 2**20  # of a core: a piece of every rank and the scratch should fit in
_MOST_PIECE_BYTES = 2**18
_LEAST_PIECE_BYTES = 2**16


@dataclass(frozen=True)
class Region:
    """One rank's part of the shared memory.

    Args:
        headers: Two of ``[header_size]`` float64, taken in turns.
        report: ``[2]`` float64: squared norm of what this rank summed, first bad slot or -1.
        culprits: ``[size]`` uint8: which ranks' contributions to that slot are not finite.
        buckets: The flat gradients.
    """

    headers: Tuple[np.ndarray, np.ndarray]
    report: np.ndarray
    culprits: np.ndarray
    buckets: Tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Piece:
    """A range of one bucket that this rank sums, small enough for the cache.

    Args:
        bucket: Index of the bucket.
        start: First element.
        views: Every rank's elements, in rank order.
    """

    bucket: int
    start: int
    views: Tuple[np.ndarray, ...]


class Layout:
    """Offsets inside a region, the same for every rank."""

    def __init__(self, plan: BucketPlan, header_size: int, size: int) -> None:
        self._plan = plan
        self._header_size = header_size
        self._size = size
        self._report = 2 * round_up(8 * header_size, 2 * LINE_BYTES)
        self._culprits = self._report + LINE_BYTES
        at = round_up(self._culprits + size, 2 * LINE_BYTES)
        self._buckets: List[int] = []
        for bucket in plan.buckets:
            self._buckets.append(at)
            at += round_up(bucket.num_elements * stored_dtype(bucket.dtype).itemsize, 128)
        self.num_bytes = at

    def region(self, memory: np.ndarray) -> Region:
        """Arrays over one rank's ``[num_bytes]`` uint8."""
        half = self._report // 2
        headers = [memory[at : at + 8 * self._header_size].view(np.float64) for at in (0, half)]
        buckets = []
        for bucket, at in zip(self._plan.buckets, self._buckets):
            dtype = stored_dtype(bucket.dtype)
            nbytes = bucket.num_elements * dtype.itemsize
            buckets.append(memory[at : at + nbytes].view(dtype))
        return Region(
            headers=(headers[0], headers[1]),
            report=memory[self._report : self._report + 16].view(np.float64),
            culprits=memory[self._culprits : self._culprits + self._size],
            buckets=tuple(buckets),
        )


def cut_pieces(regions: Sequence[Region], rank: int) -> List[Piece]:
    """What ``rank`` sums: an even share of every bucket's cache lines, cut for the cache."""
    size = len(regions)
    piece_bytes = min(max(_CACHE_BYTES // (size + 2), _LEAST_PIECE_BYTES), _MOST_PIECE_BYTES)
    pieces = []
    for index, bucket in enumerate(regions[0].buckets):
        per_line = LINE_BYTES // bucket.itemsize
        lines = -(-bucket.size // per_line)
        first, last = split_evenly(lines, size)[rank]
        step = piece_bytes // LINE_BYTES
        for line in range(first, last, step):
            start = line * per_line
            stop = min(min(line + step, last) * per_line, bucket.size)
            views = tuple(region.buckets[index][start:stop] for region in regions)
            pieces.append(Piece(index, start, views))
    return pieces

"""Where a reducer's buffers lie in each rank's region, and the pieces of their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Sequence, Tuple

import numpy as np

from unified_ipu.comms.arrays import split_evenly
from unified_ipu.comms.kernels_numpy import stored_dtype
from unified_ipu.comms.segment import round_up

if TYPE_CHECKING:
    from unified_ipu.plan import Bucket, BucketPlan

LINE_BYTES = 64
_SMALL_BYTES = 2**14  # of all buckets: up to here each of two ranks adds up everything
_COPYING_RANKS = 2  # with more, it costs less that one of them does it
_CACHE_BYTES = 2**20  # of a core: a piece of every rank and the scratch should fit in
_MOST_PIECE_BYTES = 2**18
_LEAST_PIECE_BYTES = 2**16
_LEAST_SHARE_BYTES = 2**13  # less is not worth handing to another rank


@dataclass(frozen=True)
class Region:
    """One rank's part of the shared memory.

    Args:
        headers: Two of ``[header_size]`` float64, taken in turns.
        reports: Two of ``[1 + size]`` int64, taken in turns: the first slot that this rank found
            not to be finite, or -1, and whether each rank's contribution to it is not.
        buckets: The flat gradients.
        copies: Two copies of the buckets, taken in turns, if two ranks share so little; else none.
    """

    headers: Tuple[np.ndarray, np.ndarray]
    reports: Tuple[np.ndarray, np.ndarray]
    buckets: Tuple[np.ndarray, ...]
    copies: Tuple[Tuple[np.ndarray, ...], ...]


@dataclass(frozen=True)
class Piece:
    """A range of one bucket that one rank sums, small enough for the cache.

    Args:
        bucket: Index of the bucket.
        start: First element.
        views: Every rank's elements, in rank order.
        targets: Where their sum goes.
    """

    bucket: int
    start: int
    views: Tuple[np.ndarray, ...]
    targets: Tuple[np.ndarray, ...]


class Layout:
    """Offsets inside a region, the same for every rank."""

    def __init__(self, plan: BucketPlan, header_size: int, size: int) -> None:
        self._plan = plan
        self._header_size = header_size
        self._size = size
        self._half = round_up(8 * header_size, 2 * LINE_BYTES)
        self._reports = 2 * self._half
        self._report_bytes = round_up(8 * (1 + size), LINE_BYTES)
        at = round_up(self._reports + 2 * self._report_bytes, 2 * LINE_BYTES)
        self._buckets, at = self._place(at)
        self._copies: List[List[int]] = []
        num_bytes = sum(_num_bytes(bucket) for bucket in plan.buckets)
        if size == _COPYING_RANKS and num_bytes <= _SMALL_BYTES:
            for _ in range(2):
                offsets, at = self._place(at)
                self._copies.append(offsets)
        self.num_bytes = at

    def _place(self, at: int) -> Tuple[List[int], int]:
        offsets = []
        for bucket in self._plan.buckets:
            offsets.append(at)
            at += round_up(_num_bytes(bucket), 2 * LINE_BYTES)
        return offsets, at

    def region(self, memory: np.ndarray) -> Region:
        """Arrays over one rank's ``[num_bytes]`` uint8."""
        headers = [
            memory[at : at + 8 * self._header_size].view(np.float64) for at in (0, self._half)
        ]
        reports = [
            memory[at : at + 8 * (1 + self._size)].view(np.int64)
            for at in (self._reports, self._reports + self._report_bytes)
        ]
        return Region(
            headers=(headers[0], headers[1]),
            reports=(reports[0], reports[1]),
            buckets=self._arrays(memory, self._buckets),
            copies=tuple(self._arrays(memory, offsets) for offsets in self._copies),
        )

    def _arrays(self, memory: np.ndarray, offsets: Sequence[int]) -> Tuple[np.ndarray, ...]:
        return tuple(
            memory[at : at + _num_bytes(bucket)].view(stored_dtype(bucket.dtype))
            for bucket, at in zip(self._plan.buckets, offsets)
        )


def _num_bytes(bucket: Bucket) -> int:
    return bucket.num_elements * stored_dtype(bucket.dtype).itemsize


def cut_pieces(regions: Sequence[Region]) -> List[Piece]:
    """All pieces, each written to every rank: as long as the cache is for, and one a rank."""
    size = len(regions)
    piece_bytes = min(max(_CACHE_BYTES // (size + 2), _LEAST_PIECE_BYTES), _MOST_PIECE_BYTES)
    pieces = []
    for index, bucket in enumerate(regions[0].buckets):
        per_line = LINE_BYTES // bucket.itemsize
        lines = -(-bucket.size // per_line)
        shares = min(size, -(-bucket.nbytes // _LEAST_SHARE_BYTES))
        for first, last in split_evenly(lines, max(1, shares, -(-bucket.nbytes // piece_bytes))):
            start, stop = first * per_line, min(last * per_line, bucket.size)
            views = tuple(region.buckets[index][start:stop] for region in regions)
            pieces.append(Piece(index, start, views, views))
    return pieces


def copied_pieces(regions: Sequence[Region], rank: int, parity: int) -> List[Piece]:
    """One piece a bucket, from the copies of that parity to the buckets of ``rank`` only."""
    return [
        Piece(index, 0, tuple(region.copies[parity][index] for region in regions), (bucket,))
        for index, bucket in enumerate(regions[rank].buckets)
    ]

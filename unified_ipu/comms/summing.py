"""The arithmetic of a sum: add pieces in rank order, measure them, write them where they go."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.comms.kernels import Kernels
from unified_ipu.comms.layout import Piece

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

_HALVES = ("float16", "bfloat16")
_NO_SLOT = -1


@dataclass(frozen=True)
class _Work:
    """A piece and where its sum is made: ``addend`` is for halves only, None otherwise."""

    piece: Piece
    total: np.ndarray
    addend: Optional[np.ndarray]


class Summing:
    """Pieces in items of work; halves are added in float32 and rounded once, when written.

    Args:
        plan: What lies where.
        pieces: In order.
        kernels: Arithmetic on them.
        most_items: Pieces are put together in so many items at most.
    """

    def __init__(
        self, plan: BucketPlan, pieces: Sequence[Piece], kernels: Kernels, most_items: int
    ) -> None:
        self._kernels = kernels
        self._plan = plan
        work = _plan_work(plan, pieces, kernels)
        length = -(-len(work) // most_items)
        self._items = [work[first : first + length] for first in range(0, len(work), length or 1)]
        self.num_items = len(self._items)

    def measure(
        self,
        item: int,
        contributors: Sequence[int],
        factor: Optional[float],
        report: np.ndarray,
    ) -> float:
        """Sum an item and take its norm; write it, times ``factor``, unless that is None.

        Args:
            item: Which of ``num_items``.
            contributors: Ranks whose gradients count, in order.
            factor: Of the gradient.
            report: This rank's, see ``Region``; the first bad slot of all calls is left there.

        Returns:
            The squared norm of the undivided sum; nan if an element is not finite. Then nothing is
            written from that piece on.
        """
        total = 0.0
        for work in self._items[item]:
            self._sum(work, contributors)
            norm = self._kernels.squared_norm(work.total)
            if not math.isfinite(norm):
                self._diagnose(work, contributors, report)
                total = math.nan
            total += norm
            if factor is not None and not math.isnan(total):
                self._write(work, factor)
        return total

    def write(self, item: int, contributors: Sequence[int], factor: float) -> float:
        """Sum an item and write it, times ``factor``; returns 0."""
        for work in self._items[item]:
            self._sum(work, contributors)
            self._write(work, factor)
        return 0.0

    def close(self) -> None:
        """Let go of the buffers."""
        self._items = []

    def _sum(self, work: _Work, contributors: Sequence[int]) -> None:
        kernels, views, total = self._kernels, work.piece.views, work.total
        first, others = contributors[0], contributors[1:]
        if work.addend is not None:
            kernels.cast(views[first], total)
            for rank in others:
                kernels.cast(views[rank], work.addend)
                kernels.add(total, work.addend, total)
        elif not others:
            np.copyto(total, views[first])
        else:
            kernels.add(views[first], views[others[0]], total)
            for rank in others[1:]:
                kernels.add(total, views[rank], total)

    def _write(self, work: _Work, factor: float) -> None:
        kernels, total = self._kernels, work.total
        if work.addend is None:
            for view in work.piece.targets:
                kernels.scale(total, factor, view)
        else:
            kernels.scale(total, factor, total)
            for view in work.piece.targets:
                kernels.cast(total, view)

    def _diagnose(self, work: _Work, contributors: Sequence[int], report: np.ndarray) -> None:
        """The first bad slot of what is reported and this piece; slow, as it ends the update."""
        count, views = self._kernels.count_non_finite, work.piece.views
        for index, low, high in self._slots_in(work.piece):
            known = int(report[0])
            if (known != _NO_SLOT and index > known) or not count(work.total[low:high]):
                continue
            if index != known:
                report[1:] = 0
            report[0] = index
            for rank in contributors:
                if count(views[rank][low:high]):
                    report[1 + rank] = 1

    def _slots_in(self, piece: Piece) -> List[Tuple[int, int, int]]:
        """``(slot index, first, last)`` of the slots in a piece, relative to its start."""
        found = []
        stop = piece.start + piece.views[0].size
        for index, slot in enumerate(self._plan.slots):
            if slot.bucket != piece.bucket:
                continue
            length = math.prod(slot.shape)
            low, high = max(slot.offset, piece.start), min(slot.offset + length, stop)
            if low < high:
                found.append((index, low - piece.start, high - piece.start))
        return found


def _plan_work(plan: BucketPlan, pieces: Sequence[Piece], kernels: Kernels) -> List[_Work]:
    """One scratch of the longest piece for each dtype of sums, shared by all pieces."""
    longest: Dict[str, int] = {}
    for piece in pieces:
        dtype = _sum_dtype(plan, piece)
        longest[dtype] = max(longest.get(dtype, 0), piece.views[0].size)
    scratch = {dtype: kernels.allocate(length, dtype) for dtype, length in longest.items()}
    addend = kernels.allocate(longest.get("float32", 0), "float32")
    work = []
    for piece in pieces:
        length = piece.views[0].size
        is_half = plan.buckets[piece.bucket].dtype in _HALVES
        total = scratch[_sum_dtype(plan, piece)][:length]
        work.append(_Work(piece, total, addend[:length] if is_half else None))
    return work


def _sum_dtype(plan: BucketPlan, piece: Piece) -> str:
    dtype = plan.buckets[piece.bucket].dtype
    return "float32" if dtype in _HALVES else dtype

"""One rank's share of the sum: add pieces in rank order, measure them, write them to all ranks."""

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


@dataclass(frozen=True)
class Findings:
    """What one rank found in its share.

    Args:
        squared_norm: Of the undivided sum.
        slot: Index of the first slot whose sum is not finite, or -1.
        ranks: Ranks whose contributions to that slot, in this share, are not finite.
    """

    squared_norm: float
    slot: int = -1
    ranks: Tuple[int, ...] = ()


@dataclass(frozen=True)
class _Work:
    """A piece and where its sum is made: ``addend`` is for halves only, None otherwise."""

    piece: Piece
    total: np.ndarray
    addend: Optional[np.ndarray]


class Summing:
    """The pieces of one rank; halves are added in float32 and rounded once, when written."""

    def __init__(self, plan: BucketPlan, pieces: Sequence[Piece], kernels: Kernels) -> None:
        self._kernels = kernels
        self._plan = plan
        self._work = _plan_work(plan, pieces, kernels)

    def measure(self, contributors: Sequence[int], factor: Optional[float]) -> Findings:
        """Sum all pieces and take their norm; write them, times ``factor``, unless it is None.

        Nothing is written from the first piece on that is not finite.
        """
        squared_norm = 0.0
        bad: Optional[Findings] = None
        for work in self._work:
            self._sum(work, contributors)
            norm = self._kernels.squared_norm(work.total)
            squared_norm += norm
            if not math.isfinite(norm):
                bad = self._diagnose(work.piece, work.total, contributors, bad)
            if factor is not None and bad is None:
                self._write(work, factor)
        return bad or Findings(squared_norm)

    def write(self, contributors: Sequence[int], factor: float) -> None:
        """Sum all pieces and write them to every rank, times ``factor``."""
        for work in self._work:
            self._sum(work, contributors)
            self._write(work, factor)

    def close(self) -> None:
        """Let go of the buffers."""
        self._work = []

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
            for view in work.piece.views:
                kernels.scale(total, factor, view)
        else:
            kernels.scale(total, factor, total)
            for view in work.piece.views:
                kernels.cast(total, view)

    def _diagnose(
        self,
        piece: Piece,
        summed: np.ndarray,
        contributors: Sequence[int],
        known: Optional[Findings],
    ) -> Findings:
        """The first bad slot of what is known and this piece; slow, as it ends the update."""
        count = self._kernels.count_non_finite
        best = known
        for index, low, high in self._slots_in(piece):
            if best is not None and index > best.slot:
                continue
            if not count(summed[low:high]):
                continue
            ranks: List[int] = [rank for rank in contributors if count(piece.views[rank][low:high])]
            if best is not None and index == best.slot:
                ranks = sorted({*ranks, *best.ranks})
            best = Findings(math.nan, index, tuple(ranks))
        return best or Findings(math.nan, 0, ())

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

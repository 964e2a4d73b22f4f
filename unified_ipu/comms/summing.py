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


class Summing:
    """The pieces of one rank; halves are added in float32 and rounded once, when written."""

    def __init__(self, plan: BucketPlan, pieces: Sequence[Piece], kernels: Kernels) -> None:
        self._kernels = kernels
        self._pieces = list(pieces)
        self._plan = plan
        self._is_half = [bucket.dtype in _HALVES for bucket in plan.buckets]
        self._scratch: Dict[str, np.ndarray] = {}
        longest: Dict[str, int] = {}
        for piece in self._pieces:
            name = self._sum_dtype(piece.bucket)
            longest[name] = max(longest.get(name, 0), piece.views[0].size)
        for name, length in longest.items():
            self._scratch[name] = kernels.allocate(length, name)
        half = max(
            (piece.views[0].size for piece in self._pieces if self._is_half[piece.bucket]),
            default=0,
        )
        self._addend = kernels.allocate(half, "float32")

    def measure(self, contributors: Sequence[int], factor: Optional[float]) -> Findings:
        """Sum all pieces and take their norm; write them, times ``factor``, unless it is None.

        Nothing is written from the first piece on that is not finite.
        """
        total = 0.0
        bad: Optional[Findings] = None
        for piece in self._pieces:
            summed = self._sum(piece, contributors)
            norm = self._kernels.squared_norm(summed)
            total += norm
            if not math.isfinite(norm):
                bad = self._diagnose(piece, summed, contributors, bad)
            if factor is not None and bad is None:
                self._write(piece, summed, factor)
        return bad or Findings(total)

    def write(self, contributors: Sequence[int], factor: float) -> None:
        """Sum all pieces and write them to every rank, times ``factor``."""
        for piece in self._pieces:
            self._write(piece, self._sum(piece, contributors), factor)

    def close(self) -> None:
        """Let go of the buffers."""
        self._pieces = []
        self._scratch = {}

    def _sum_dtype(self, bucket: int) -> str:
        return "float32" if self._is_half[bucket] else str(self._plan.buckets[bucket].dtype)

    def _sum(self, piece: Piece, contributors: Sequence[int]) -> np.ndarray:
        kernels = self._kernels
        views = [piece.views[rank] for rank in contributors]
        total = self._scratch[self._sum_dtype(piece.bucket)][: views[0].size]
        if self._is_half[piece.bucket]:
            addend = self._addend[: total.size]
            kernels.cast(views[0], total)
            for view in views[1:]:
                kernels.cast(view, addend)
                kernels.add(total, addend, total)
        elif len(views) == 1:
            np.copyto(total, views[0])
        else:
            kernels.add(views[0], views[1], total)
            for view in views[2:]:
                kernels.add(total, view, total)
        return total

    def _write(self, piece: Piece, summed: np.ndarray, factor: float) -> None:
        kernels = self._kernels
        if self._is_half[piece.bucket]:
            kernels.scale(summed, factor, summed)
            for view in piece.views:
                kernels.cast(summed, view)
        else:
            for view in piece.views:
                kernels.scale(summed, factor, view)

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

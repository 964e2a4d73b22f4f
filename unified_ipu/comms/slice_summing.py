"""One rank's slices of the gradients: summed over its host, then over hosts, and written back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, List, Sequence, Tuple

import numpy as np

from unified_ipu.comms.exchange import Exchange
from unified_ipu.comms.kernels import Kernels
from unified_ipu.comms.slices import Finding, Slice, slots_in

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

_HALVES = ("float16", "bfloat16")
_BLOCK = 65536  # elements: what is added of every rank should fit in the cache


class SliceSumming:
    """The slices of one rank; halves are added in float32 and rounded once, when written.

    Args:
        plan: What lies where.
        slices: Of every bucket.
        kernels: Arithmetic on the buffers.
        rail: To the ranks of other hosts with the same slices.
    """

    def __init__(
        self, plan: BucketPlan, slices: Sequence[Slice], kernels: Kernels, rail: Exchange
    ) -> None:
        self._plan = plan
        self._slices = slices
        self._kernels = kernels
        self._rail = rail
        self._scratch, self._addend = self._build_scratch()

    def add_up(self, contributors: Sequence[int], factor: float) -> Finding:
        """Sum the slices over all hosts and write them, times ``factor``, to all ranks of this one.

        Nothing is written from the first slice on that is not finite, so the contributions to it
        are still there to say who is to blame.

        Args:
            contributors: Ranks of this host whose gradients count.
            factor: Of the sum.

        Returns:
            What was found; its ranks are those of this host.
        """
        norm, bad = 0.0, -1
        guilty: List[int] = []
        for piece in self._slices:
            total = self._add_host(piece, contributors)
            flat = total.view(total.real.dtype) if total.dtype.kind == "c" else total
            if flat.size:
                self._rail.wire.add(flat, self._rail.waiting())
            found = self._kernels.squared_norm(total)
            norm += found
            if not math.isfinite(found):
                slot, ranks = self._diagnose(piece, total, contributors)
                if bad < 0 or slot < bad:
                    bad, guilty = slot, ranks
            elif bad < 0:
                self._write(piece, total, factor)
        return Finding(norm, bad, guilty)

    def _add_host(self, piece: Slice, contributors: Sequence[int]) -> np.ndarray:
        """The sum of a slice over the contributing ranks of this host, in rank order."""
        kernels, size = self._kernels, piece.views[0].size
        dtype = self._plan.buckets[piece.bucket].dtype
        wide = _sum_dtype(dtype)
        total: np.ndarray = self._scratch[: size * wide.itemsize].view(wide)
        if not contributors:
            total.fill(0)
            return total
        first, others = contributors[0], contributors[1:]
        for low in range(0, size, _BLOCK):
            block = slice(low, low + _BLOCK)
            part = total[block]
            kernels.cast(piece.views[first][block], part)
            for rank in others:
                addend = piece.views[rank][block]
                if dtype in _HALVES:
                    kernels.cast(addend, self._addend[: part.size])
                    addend = self._addend[: part.size]
                kernels.add(part, addend, part)
        return total

    def _write(self, piece: Slice, total: np.ndarray, factor: float) -> None:
        kernels = self._kernels
        is_half = self._plan.buckets[piece.bucket].dtype in _HALVES
        for low in range(0, total.size, _BLOCK):
            block = slice(low, low + _BLOCK)
            part = total[block]
            if is_half:
                kernels.scale(part, factor, part)
            for view in piece.views:
                if is_half:
                    kernels.cast(part, view[block])
                else:
                    kernels.scale(part, factor, view[block])

    def _diagnose(
        self, piece: Slice, total: np.ndarray, contributors: Sequence[int]
    ) -> Tuple[int, List[int]]:
        """The first slot in a slice whose sum is not finite, and ranks of this host to blame."""
        count = self._kernels.count_non_finite
        for slot, low, high in slots_in(self._plan, piece):
            if count(total[low:high]):
                return slot, [rank for rank in contributors if count(piece.views[rank][low:high])]
        return 0, []

    def _build_scratch(self) -> Tuple[np.ndarray, np.ndarray]:
        """Room for the sum of the longest slice, and for one block of halves, widened."""
        needed = [
            piece.views[0].size * _sum_dtype(self._plan.buckets[piece.bucket].dtype).itemsize
            for piece in self._slices
        ]
        has_halves = any(bucket.dtype in _HALVES for bucket in self._plan.buckets)
        allocate = self._kernels.allocate
        return (
            allocate(max(needed, default=0), "uint8"),
            allocate(_BLOCK if has_halves else 0, "float32"),
        )


def _sum_dtype(dtype: str) -> np.dtype:
    return np.dtype("float32" if dtype in _HALVES else dtype)

"""The sum of all gradients over ranks that share no memory: L1's division, decision and clipping.

A reduction is: exchange the headers (every rank adds them up itself, in rank order), add up one
bucket after the other in a scratch as long as the longest, exchange what was found. The sums are
the same bits on every rank, but a norm is not where ranks have different processors, so all take
that of rank 0. The sum of a bucket replaces this rank's contribution only when it is finite:
otherwise the contribution is still there to say who is to blame.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, List, Optional

import numpy as np

from unified_ipu.comms.exchange import Exchange
from unified_ipu.comms.kernels import Kernels
from unified_ipu.comms.kernels_numpy import NumpyKernels
from unified_ipu.comms.reduction import NonFinite, Reduction
from unified_ipu.comms.signature import build_signature
from unified_ipu.comms.wire import Waiting

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

Divide = Callable[[np.ndarray], Optional[float]]
Add = Callable[[np.ndarray, Waiting], None]

_HALVES = ("float16", "bfloat16")


class GeneralReducer:
    """Gradients of one rank in its own memory, and their reduction; interface of ``Reducer``.

    Args:
        exchange: Of the ranks to sum over.
        bucket_plan: What lies where.
        header_size: Number of float64 values that are summed along.
        kernels: Arithmetic on the buffers.
        add: Overwrites a flat array with its sum over ranks, the same bits on all; the wire's own
            addition unless given.
    """

    def __init__(
        self,
        exchange: Exchange,
        bucket_plan: BucketPlan,
        header_size: int,
        kernels: Optional[Kernels] = None,
        *,
        add: Optional[Add] = None,
    ) -> None:
        self._exchange = exchange
        self._wire = exchange.wire
        self._add = add or exchange.wire.add
        self._plan = bucket_plan
        self._kernels = kernels or NumpyKernels()
        self._text = f"reduce gradients {bucket_plan.digest} header {header_size}"
        self._header = np.zeros(header_size, np.float64)
        allocate = self._kernels.allocate
        self.gradients: List[np.ndarray] = [
            allocate(bucket.num_elements, bucket.dtype) for bucket in bucket_plan.buckets
        ]
        needed = [
            bucket.num_elements * _sum_dtype(bucket.dtype).itemsize
            for bucket in bucket_plan.buckets
        ]
        self._scratch = allocate(max(needed, default=0), "uint8")

    @property
    def header(self) -> np.ndarray:
        """This rank's header for the next reduction, ``[header_size]`` float64, zeroed."""
        return self._header

    def reduce(
        self, *, contributes: bool, divide: Divide, clip_norm: Optional[float] = None
    ) -> Reduction:
        """Sum gradients and headers over ranks, divide and clip; all ranks get the same bits.

        Args:
            contributes: Whether this rank's gradients count; False: they are not read.
            divide: From the summed header to the factor of the gradient, or None: no update. Must
                give the same on all ranks.
            clip_norm: Largest norm of the divided gradient, or None.

        Raises:
            CollectiveError: If ranks disagree about the buckets, or one is lost.
        """
        text = self._text if clip_norm is None else f"{self._text} {clip_norm!r}"
        flags, headers = self._exchange.begin(
            build_signature(text), int(contributes), self._header.view(np.uint8)
        )
        total = headers[0].view(np.float64).copy()
        for header in headers[1:]:
            np.add(total, header.view(np.float64), out=total)
        self._header.fill(0.0)
        try:
            asked = divide(total)
        except Exception:
            # It raises on all ranks, which have met and so stay in step.
            self._exchange.finish()
            raise
        reduction = Reduction(total, None)
        if asked is not None and any(flags):
            with np.errstate(all="ignore"):
                reduction = self._sum(total, float(asked), contributes, clip_norm)
        elif asked is not None:
            for buffer in self.gradients:
                buffer.fill(0)
            reduction = Reduction(total, float(asked))
        self._exchange.finish()
        return reduction

    def close(self) -> None:
        """Let go of the buffers."""
        self.gradients = []
        self._scratch = np.empty(0, np.uint8)

    def _sum(
        self, header: np.ndarray, factor: float, contributes: bool, clip_norm: Optional[float]
    ) -> Reduction:
        norm, bad, guilty = 0.0, -1, False
        for index in range(len(self.gradients)):
            total = self._add_up(index, contributes)
            found = self._kernels.squared_norm(total)
            norm += found
            if not math.isfinite(found):
                slot = self._first_bad(index, total)
                if bad < 0 or slot < bad:
                    bad, guilty = slot, contributes and self._is_guilty(slot)
            elif bad < 0:
                self._write(index, total, factor)
        return self._decide(header, factor, clip_norm, np.array([norm, bad, guilty], np.float64))

    def _add_up(self, index: int, contributes: bool) -> np.ndarray:
        buffer, dtype = self.gradients[index], _sum_dtype(self._plan.buckets[index].dtype)
        total: np.ndarray = self._scratch[: buffer.size * dtype.itemsize].view(dtype)
        if contributes:
            self._kernels.cast(buffer, total)
        else:
            total.fill(0)
        flat = total.view(total.real.dtype) if total.dtype.kind == "c" else total
        if flat.size:
            self._add(flat, self._exchange.waiting())
        return total

    def _write(self, index: int, total: np.ndarray, factor: float) -> None:
        buffer = self.gradients[index]
        if self._plan.buckets[index].dtype in _HALVES:
            self._kernels.scale(total, factor, total)
            self._kernels.cast(total, buffer)
        else:
            self._kernels.scale(total, factor, buffer)

    def _decide(
        self,
        header: np.ndarray,
        factor: float,
        clip_norm: Optional[float],
        report: np.ndarray,
    ) -> Reduction:
        gathered = self._wire.gather(report.view(np.uint8), self._exchange.waiting())
        reports = [part.view(np.float64) for part in gathered]
        slots = [int(found[1]) for found in reports if found[1] >= 0]
        if slots:
            first = min(slots)
            ranks = tuple(
                rank for rank, found in enumerate(reports) if found[2] and int(found[1]) == first
            )
            non_finite = NonFinite(self._plan.slots[first].name, ranks)
            return Reduction(header, factor, math.nan, non_finite=non_finite)
        total = float(reports[0][0])
        squared_norm = total * factor * factor
        clipped = False
        if clip_norm is not None:
            norm = math.sqrt(total) * abs(factor)
            clipped = norm > clip_norm
            for buffer in self.gradients if clipped else []:
                self._kernels.scale(buffer, clip_norm / norm, buffer)
        return Reduction(header, factor, squared_norm, clipped)

    def _first_bad(self, index: int, total: np.ndarray) -> int:
        """Index of the first slot of a bucket whose sum is not finite; slow, as it ends the run."""
        for number, slot in enumerate(self._plan.slots):
            stop = slot.offset + math.prod(slot.shape)
            if slot.bucket == index and self._kernels.count_non_finite(total[slot.offset : stop]):
                return number
        return 0

    def _is_guilty(self, number: int) -> bool:
        slot = self._plan.slots[number]
        buffer = self.gradients[slot.bucket]
        stop = slot.offset + math.prod(slot.shape)
        return self._kernels.count_non_finite(buffer[slot.offset : stop]) > 0


def _sum_dtype(dtype: str) -> np.dtype:
    return np.dtype("float32" if dtype in _HALVES else dtype)

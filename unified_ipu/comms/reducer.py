"""The sum of all gradients over ranks: L1's division, its non-finite decision and its clipping.

The gradients lie in memory that all ranks share, so nothing is copied to be sent. A reduction is:
meet (the headers are complete; every rank adds them up itself, in rank order), sum pieces of the
buckets in rank order and measure their norm, whoever is free taking the next piece, until all are
done (norms and non-finite findings are complete), decide. Without clipping the factor is known
before the sum, so a piece is written to every rank while it is in the cache. With clipping the
factor needs the norm of everything, so the sum is made twice, once to measure and once to write:
no memory beside the buffers, and contributions stay whole until the decision. Keeping the first
sum was rejected: it writes more memory than summing again reads.

Between two ranks a few KiB are cheaper to copy than to meet a second time: each shows a copy of its
gradients and adds both up for itself, with the same instructions on the same bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence

import numpy as np

from unified_ipu.comms.communicator import Communicator
from unified_ipu.comms.kernels import Kernels
from unified_ipu.comms.kernels_numpy import NumpyKernels
from unified_ipu.comms.layout import Layout, copied_pieces, cut_pieces
from unified_ipu.comms.reduction import NonFinite, Reduction
from unified_ipu.comms.shares import MOST_ITEMS, Shares, Work
from unified_ipu.comms.signature import build_signature
from unified_ipu.comms.summing import Summing

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

Divide = Callable[[np.ndarray], Optional[float]]
_NOTHING_BAD = -1


class Reducer:
    """Gradients of one rank in memory shared with the others, and their reduction.

    Args:
        communicator: Of the ranks to sum over, all on this host.
        bucket_plan: What lies where.
        header_size: Number of float64 values that are summed along.
        kernels: Arithmetic on the buffers; None: numpy's.
        shares: Through which the ranks divide the work; None only if there is one rank.
    """

    def __init__(
        self,
        communicator: Communicator,
        bucket_plan: BucketPlan,
        header_size: int,
        kernels: Optional[Kernels],
        shares: Optional[Shares],
    ) -> None:
        self._communicator = communicator
        self._plan = bucket_plan
        self._rank = communicator.rank
        self._everybody = list(range(communicator.size))
        layout = Layout(bucket_plan, header_size, communicator.size)
        memory = communicator.allocate_shared(layout.num_bytes, "gradients")
        self._regions = [layout.region(part) for part in memory]
        self._mine = self._regions[self._rank]
        self._parity = 0
        self._shares = shares
        arithmetic = kernels or NumpyKernels()
        self._copies = self._mine.copies
        if self._copies:
            self._shares = None
            pieces = [copied_pieces(self._regions, self._rank, parity) for parity in (0, 1)]
        else:
            pieces = [cut_pieces(self._regions)]
        self._summings = [Summing(bucket_plan, each, arithmetic, MOST_ITEMS) for each in pieces]
        self._text = f"reduce gradients {bucket_plan.digest} header {header_size}"
        self.gradients: List[np.ndarray] = list(self._mine.buckets)

    @property
    def header(self) -> np.ndarray:
        """This rank's header for the next reduction, ``[header_size]`` float64, zeroed.

        Two take turns, so read it anew for each update.
        """
        return self._mine.headers[self._parity]

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
        signature = build_signature(
            self._text if clip_norm is None else f"{self._text} {clip_norm!r}"
        )
        parity = self._parity
        self._mine.reports[parity][0] = _NOTHING_BAD
        if self._copies and contributes:
            for copy, buffer in zip(self._copies[parity], self.gradients):
                np.copyto(copy, buffer)
        flags = self._communicator.enter(signature, int(contributes))
        if self._shares is not None:
            self._shares.begin()
        header = self._sum_headers(parity)
        try:
            asked = divide(header)
        except Exception:
            # It raises on all ranks, which have met and so stay in step.
            self._communicator.finish()
            raise
        if asked is None:
            reduction = Reduction(header, None)
        else:
            contributors = self._everybody
            if not all(flags):
                contributors = [rank for rank in contributors if flags[rank]]
            with np.errstate(all="ignore"):
                reduction = self._sum_gradients(
                    parity, header, float(asked), contributors, clip_norm=clip_norm
                )
        self._communicator.finish()
        return reduction

    def close(self) -> None:
        """Let go of the shared memory; it is freed when nobody holds a view of it."""
        self.gradients = []
        self._regions = []
        for summing in self._summings:
            summing.close()

    def _sum_headers(self, parity: int) -> np.ndarray:
        total = self._regions[0].headers[parity].copy()
        for region in self._regions[1:]:
            np.add(total, region.headers[parity], out=total)
        # The other half was read before the barrier just passed.
        self._parity = 1 - parity
        self._mine.headers[self._parity].fill(0.0)
        return total

    def _sum_gradients(
        self,
        parity: int,
        header: np.ndarray,
        factor: float,
        contributors: Sequence[int],
        *,
        clip_norm: Optional[float],
    ) -> Reduction:
        if not contributors:
            for buffer in self.gradients:
                buffer.fill(0)
            return Reduction(header, factor)
        summing = self._summings[parity if self._copies else 0]
        report = self._mine.reports[parity]
        written = factor if clip_norm is None else None
        total = self._share(
            summing.num_items,
            lambda item: summing.measure(item, contributors, written, report),
        )
        if math.isnan(total):
            bad = self._name_bad(parity)
            return Reduction(header, factor, math.nan, non_finite=bad)
        squared_norm = total * factor * factor
        clipped = False
        if clip_norm is not None:
            norm = math.sqrt(total) * abs(factor)
            clipped = norm > clip_norm
            whole = factor * (clip_norm / norm) if clipped else factor
            self._share(summing.num_items, lambda item: summing.write(item, contributors, whole))
        return Reduction(header, factor, squared_norm, clipped)

    def _share(self, num_items: int, work: Work) -> float:
        """Have all items done; the sum of what they gave, in their order."""
        if self._shares is None:
            return sum(work(item) for item in range(num_items))
        return float(sum(self._shares.share(num_items, work).tolist()))

    def _name_bad(self, parity: int) -> NonFinite:
        regions = self._regions[self._rank :][:1] if self._copies else self._regions
        reports = [region.reports[parity] for region in regions]
        reports = [report for report in reports if report[0] != _NOTHING_BAD]
        # Only the gaps between slots can be bad without a slot that is.
        first = min((int(report[0]) for report in reports), default=0)
        culprits = sum(report[1:] for report in reports if report[0] == first)
        ranks = tuple(int(rank) for rank in np.flatnonzero(culprits))
        return NonFinite(self._plan.slots[first].name, ranks)

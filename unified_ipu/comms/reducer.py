"""The sum of all gradients over ranks: L1's division, its non-finite decision and its clipping.

The gradients lie in memory that all ranks share, so nothing is copied to be sent. A reduction is:
meet (the headers are complete; every rank adds them up itself, in rank order), sum a share of
every bucket in rank order and measure its norm, meet (norms and non-finite findings are complete),
decide. Without clipping the factor is known before the sum, so the share is written to every rank
while it is in the cache: two barriers. With clipping the factor needs the norm of everything, so
the sum is made twice, once to measure and once to write: three barriers, no memory beside the
buffers, and contributions stay whole until the decision. Keeping the first sum was rejected: it
writes more memory than summing again reads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.comms.communicator import Communicator
from unified_ipu.comms.kernels import Kernels
from unified_ipu.comms.kernels_numpy import NumpyKernels
from unified_ipu.comms.layout import Layout, Piece, cut_pieces
from unified_ipu.comms.reduction import NonFinite, Reduction
from unified_ipu.comms.signature import build_signature
from unified_ipu.comms.summing import Findings, Summing

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

Divide = Callable[[np.ndarray], Optional[float]]


class Reducer:
    """Gradients of one rank in memory shared with the others, and their reduction.

    Args:
        communicator: Of the ranks to sum over, all on this host.
        bucket_plan: What lies where.
        header_size: Number of float64 values that are summed along.
        kernels: Arithmetic on the buffers.
    """

    def __init__(
        self,
        communicator: Communicator,
        bucket_plan: BucketPlan,
        header_size: int,
        kernels: Optional[Kernels] = None,
    ) -> None:
        self._communicator = communicator
        self._plan = bucket_plan
        self._rank = communicator.rank
        layout = Layout(bucket_plan, header_size, communicator.size)
        memory = communicator.allocate_shared(layout.num_bytes, "gradients")
        self._regions = [layout.region(part) for part in memory]
        self._mine = self._regions[self._rank]
        self._parity = 0
        self._pieces: List[Piece] = cut_pieces(self._regions, self._rank)
        self._summing = Summing(bucket_plan, self._pieces, kernels or NumpyKernels())
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
        flags = self._communicator.enter(signature, int(contributes))
        header = self._sum_headers()
        try:
            asked = divide(header)
        except Exception:
            # It raises on all ranks, which have met and so stay in step.
            self._communicator.finish()
            raise
        reduction = Reduction(header, None)
        if asked is not None:
            factor = float(asked)
            contributors = tuple(rank for rank, flag in enumerate(flags) if flag)
            with np.errstate(all="ignore"):
                reduction = self._sum_gradients(header, factor, contributors, clip_norm)
        self._communicator.finish()
        return reduction

    def close(self) -> None:
        """Let go of the shared memory; it is freed when nobody holds a view of it."""
        self.gradients = []
        self._regions = []
        self._pieces = []
        self._summing.close()

    def _sum_headers(self) -> np.ndarray:
        parity = self._parity
        total = self._regions[0].headers[parity].copy()
        for region in self._regions[1:]:
            np.add(total, region.headers[parity], out=total)
        # The other half was read before the barrier just passed.
        self._parity = 1 - parity
        self._mine.headers[self._parity].fill(0.0)
        return total

    def _sum_gradients(
        self,
        header: np.ndarray,
        factor: float,
        contributors: Sequence[int],
        clip_norm: Optional[float],
    ) -> Reduction:
        if not contributors:
            self._communicator.meet()
            for buffer in self.gradients:
                buffer.fill(0)
            return Reduction(header, factor)
        findings = self._summing.measure(contributors, factor if clip_norm is None else None)
        self._publish(findings)
        self._communicator.meet()
        total, non_finite = self._collect()
        if non_finite is not None:
            return Reduction(header, factor, math.nan, non_finite=non_finite)
        squared_norm = total * factor * factor
        clipped = False
        if clip_norm is not None:
            norm = math.sqrt(total) * abs(factor)
            clipped = norm > clip_norm
            self._summing.write(contributors, factor * (clip_norm / norm) if clipped else factor)
            self._communicator.meet()
        return Reduction(header, factor, squared_norm, clipped)

    def _publish(self, findings: Findings) -> None:
        self._mine.report[0] = findings.squared_norm
        self._mine.report[1] = findings.slot
        if findings.slot >= 0:
            self._mine.culprits.fill(0)
            self._mine.culprits[list(findings.ranks)] = 1

    def _collect(self) -> Tuple[float, Optional[NonFinite]]:
        total = 0.0
        bad: List[Tuple[int, np.ndarray]] = []
        for region in self._regions:
            norm, slot = region.report
            total += float(norm)
            if slot >= 0:
                bad.append((int(slot), region.culprits))
        if not bad:
            return total, None
        first = min(slot for slot, _ in bad)
        culprits = np.zeros(len(self._regions), np.uint8)
        for slot, marks in bad:
            if slot == first:
                culprits |= marks
        ranks = tuple(int(rank) for rank in np.flatnonzero(culprits))
        return total, NonFinite(self._plan.slots[first].name, ranks)

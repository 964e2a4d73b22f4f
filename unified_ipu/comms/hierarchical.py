"""The sum of gradients over ranks of several hosts: in memory inside a host, by a wire between.

A reduction is: meet in the host (headers are complete), exchange their sums between hosts, meet
(every rank knows all headers). Then each rank with a rail adds up its slice of every bucket over
the ranks of its host, in rank order, over the hosts by the rail, and writes the result to all ranks
of its host; the rails exchange what they found, and the host meets to decide. So a host sends every
sum once, not once a rank. Norms are those of the first host and are added in the order of the
rails: the same bits on every rank, also where hosts have different processors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.comms.exchange import Exchange
from unified_ipu.comms.hosts import Hosts
from unified_ipu.comms.kernels import Kernels
from unified_ipu.comms.kernels_numpy import NumpyKernels
from unified_ipu.comms.layout import Layout
from unified_ipu.comms.reduction import NonFinite, Reduction
from unified_ipu.comms.signature import Signature, build_signature
from unified_ipu.comms.slice_summing import SliceSumming
from unified_ipu.comms.slices import Finding, Found, cut_slices
from unified_ipu.errors import CollectiveError

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

Divide = Callable[[np.ndarray], Optional[float]]

_DIGEST_CHARS = 16


class HierarchicalReducer:
    """Gradients of one rank in memory shared by its host, and their reduction over all hosts.

    The interface of ``Reducer``. Making one is collective over the ranks of a host.

    Args:
        hosts: The ranks to sum over.
        bucket_plan: What lies where.
        header_size: Number of float64 values that are summed along.
        kernels: Arithmetic on the buffers.

    Raises:
        CollectiveError: On all ranks of this host, if it lacks the memory.
    """

    def __init__(
        self,
        hosts: Hosts,
        bucket_plan: BucketPlan,
        header_size: int,
        kernels: Optional[Kernels] = None,
    ) -> None:
        self._hosts = hosts
        self._local = hosts.local
        self._plan = bucket_plan
        self._kernels = kernels or NumpyKernels()
        # Short, so that what ranks of one host disagree about can be told to the others.
        digest = bucket_plan.digest[:_DIGEST_CHARS]
        self._text = f"reduce gradients {digest} header {header_size} over hosts"
        self._world_size = sum(len(group) for group in hosts.groups)
        layout = Layout(bucket_plan, header_size, self._local.size)
        memory = self._local.allocate_shared(layout.num_bytes, "gradients")
        regions = [layout.region(part) for part in memory]
        each = Found.num_bytes(header_size, self._world_size)
        shown = self._local.allocate_shared(each, "what was found")
        self._found = [Found(part, header_size, self._world_size) for part in shown]
        self._headers = [region.headers for region in regions]
        self._parity = 0
        self._summing: Optional[SliceSumming] = None
        if hosts.rail is not None:
            slices = cut_slices(regions, self._local.rank, hosts.num_rails)
            self._summing = SliceSumming(bucket_plan, slices, self._kernels, hosts.rail)
        self.gradients: List[np.ndarray] = list(regions[self._local.rank].buckets)

    @property
    def header(self) -> np.ndarray:
        """This rank's header for the next reduction, ``[header_size]`` float64, zeroed.

        Two take turns, so read it anew for each update.
        """
        return self._headers[self._local.rank][self._parity]

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
        with self._hosts.collective(signature):
            contributors, header, contributions = self._meet(signature, contributes=contributes)
            try:
                asked = divide(header)
            except Exception:
                # It raises on all ranks, which have met and so stay in step.
                self._finish()
                raise
            reduction = Reduction(header, None)
            if asked is not None and contributions:
                with np.errstate(all="ignore"):
                    reduction = self._sum(header, float(asked), contributors, clip_norm)
            elif asked is not None:
                for buffer in self.gradients:
                    buffer.fill(0)
                reduction = Reduction(header, float(asked))
            self._finish()
        return reduction

    def close(self) -> None:
        """Let go of the shared memory; it is freed when nobody holds a view of it."""
        self.gradients = []
        self._summing = None
        self._headers = []
        self._found = []

    def _meet(
        self, signature: Signature, *, contributes: bool
    ) -> Tuple[List[int], np.ndarray, int]:
        """Ranks of this host that contribute, the sum of all headers, how many contribute.

        Raises:
            CollectiveError: In step on all ranks if their signatures differ.
        """
        flags: List[int] = []
        problem = ""
        try:
            flags = self._local.enter(signature, int(contributes))
        except CollectiveError as error:
            self._hosts.check()
            problem = str(error)
        rail, mine = self._hosts.rail, self._found[self._local.rank]
        if rail is not None:
            told = self._meet_hosts(rail, mine, signature, flags, problem)
            problem = problem or told
        if not flags:  # this host disagrees with itself
            self._hosts.finish()
            raise CollectiveError(problem)
        self._local.meet()
        first = mine if rail is not None else self._found[0]
        problem = self._found[0].problem
        if problem:
            self._local.finish()
            self._hosts.finish()
            raise CollectiveError(problem)
        header = first.header.copy()
        # The other half was read before the barriers just passed.
        self._parity = 1 - self._parity
        self.header.fill(0.0)
        contributors = [rank for rank, flag in enumerate(flags) if flag]
        return contributors, header, first.contributions

    def _meet_hosts(
        self, rail: Exchange, mine: Found, signature: Signature, flags: Sequence[int], problem: str
    ) -> str:
        """Exchange headers; why that is impossible, or ""."""
        total = self._headers[0][self._parity].copy()
        for headers in self._headers[1:]:
            np.add(total, headers[self._parity], out=total)
        try:
            told = build_signature(problem) if problem else signature
            counts, parts = rail.begin(told, sum(flags), total.view(np.uint8))
        except CollectiveError as error:
            self._hosts.check()
            mine.show_problem(str(error))
            return str(error)
        total = parts[0].view(np.float64).copy()
        for part in parts[1:]:
            np.add(total, part.view(np.float64), out=total)
        mine.show_headers(total, sum(counts))
        return ""

    def _sum(
        self,
        header: np.ndarray,
        factor: float,
        contributors: Sequence[int],
        clip_norm: Optional[float],
    ) -> Reduction:
        if self._hosts.rail is not None and self._summing is not None:
            finding = self._summing.add_up(contributors, factor)
            self._exchange_findings(self._hosts.rail, finding)
        self._local.meet()
        found = self._found[: self._hosts.num_rails]
        slots = [each.slot for each in found if each.slot >= 0]
        if slots:
            first = min(slots)
            ranks = sorted({rank for each in found if each.slot == first for rank in each.ranks})
            non_finite = NonFinite(self._plan.slots[first].name, tuple(ranks))
            return Reduction(header, factor, math.nan, non_finite=non_finite)
        total = 0.0
        for each in found:
            total += each.squared_norm
        squared_norm = total * factor * factor
        clipped = False
        if clip_norm is not None:
            norm = math.sqrt(total) * abs(factor)
            clipped = norm > clip_norm
            for buffer in self.gradients if clipped else []:
                self._kernels.scale(buffer, clip_norm / norm, buffer)
        return Reduction(header, factor, squared_norm, clipped)

    def _exchange_findings(self, rail: Exchange, finding: Finding) -> None:
        report = np.zeros(16 + self._world_size, np.uint8)
        report[:16].view(np.float64)[:] = [finding.squared_norm, finding.slot]
        members = self._hosts.groups[self._hosts.index]
        report[[16 + members[rank] for rank in finding.ranks]] = 1
        reports = rail.wire.gather(report, rail.waiting())
        heads = [part[:16].view(np.float64) for part in reports]
        bad = [int(head[1]) for head in heads if head[1] >= 0]
        first = min(bad, default=-1)
        ranks = [
            int(rank)
            for head, part in zip(heads, reports)
            if int(head[1]) == first
            for rank in np.flatnonzero(part[16:])
        ]
        self._found[self._local.rank].show_sum(float(heads[0][0]), first, ranks)

    def _finish(self) -> None:
        """All ranks have come to the end."""
        if self._hosts.rail is not None:
            self._hosts.rail.finish()
        self._local.finish()
        self._hosts.finish()

"""A communicator over a wire that knows on which hosts its ranks are, and sums gradients by that.

Gradients go by the algorithm that was asked for or chosen, one for the life of the communicator.
All other collectives go over the wire of all ranks.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Tuple

from unified_ipu.comms.choice import choose, describe_choice, gradient_bytes, measure
from unified_ipu.comms.futex import check_platform
from unified_ipu.comms.general import GeneralCommunicator
from unified_ipu.comms.general_reducer import GeneralReducer
from unified_ipu.comms.hierarchical import HierarchicalReducer
from unified_ipu.comms.hosts import Hosts, group_by_host
from unified_ipu.comms.reduction import GradientReducer
from unified_ipu.comms.ring import Ring
from unified_ipu.comms.wire import Wire
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError, PeerLostError, PlanError
from unified_ipu.plan import automatic_algorithms, why_no_algorithm
from unified_ipu.world import host_name

if TYPE_CHECKING:
    from unified_ipu.comms.kernels import Kernels
    from unified_ipu.plan import BucketPlan, CommsSettings

logger = logging.getLogger("unified_ipu.comms")

_HEADER_SIZE = 8  # of probes


class ArrangedCommunicator(GeneralCommunicator):
    """``Communicator`` over a ``Wire`` that sums gradients by an algorithm; first of all direct."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self.algorithm = "direct"
        """What sums gradients; "" while it is not chosen yet."""
        self._candidates: Tuple[str, ...] = ("direct",)
        self._groups: List[Tuple[int, ...]] = [tuple(range(self.size))]
        self._hosts: Optional[Hosts] = None

    @property
    def waiting_seconds(self) -> float:
        """Seconds this rank was blocked until all had come to a collective, in total."""
        hosts = self._hosts.waiting_seconds if self._hosts is not None else 0.0
        return self._exchange.waiting_seconds + hosts

    def arrange(self, comms: CommsSettings, *, node_rank: int, deterministic: bool) -> None:
        """Find out who is on which host, and what can sum gradients there; collective.

        Args:
            comms: The plan's; its ``algorithm`` is what is asked for.
            node_rank: Of this host, as the launcher counts them.
            deterministic: Whether "auto" must not depend on a measurement.

        Raises:
            PlanError: On all ranks, if the algorithm cannot be had here.
            CollectiveError: If the ranks of a host do not come together.
        """
        told = self.all_gather_value([f"{host_name()} {node_rank}", _platform_problem()])
        self._groups = group_by_host([key for key, _ in told])
        lengths = [len(group) for group in self._groups]
        no_memory = next((text for _, text in told if text and max(lengths) > 1), "")
        asked = comms.algorithm
        if asked == "auto":
            names = automatic_algorithms("c10d", lengths, deterministic=deterministic)
            self._candidates = tuple(
                name for name in names if name != "hierarchical" or not no_memory
            ) or ("direct",)
        else:
            problem = why_no_algorithm(asked, "c10d", lengths)
            if asked == "hierarchical":
                problem = problem or no_memory
            if problem:
                raise PlanError(
                    f'comms.algorithm = "{asked}" with {self.size} ranks on {len(lengths)} '
                    f'host(s): {problem}; set "auto"'
                )
            self._candidates = (asked,)
        self.algorithm = self._candidates[0] if len(self._candidates) == 1 else ""
        if "hierarchical" in self._candidates:
            self._hosts = self._join_hosts(comms)

    def prefer(self, algorithm: str) -> None:
        """Go on with the choice of a run that is resumed; without effect if there is none to make.

        Args:
            algorithm: The same on all ranks.
        """
        if not self.algorithm and algorithm in self._candidates:
            self.algorithm = algorithm

    def reducer(
        self, bucket_plan: BucketPlan, header_size: int, kernels: Optional[Kernels] = None
    ) -> GradientReducer:
        """What sums gradients over these ranks; collective. The first one decides how.

        Raises:
            CollectiveError: On all ranks, if a host lacks the memory.
        """
        if not self.algorithm:
            self._choose(bucket_plan)
        return self._build(self.algorithm, bucket_plan, header_size, kernels)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce that this rank may be late for a good reason."""
        with ExitStack() as stack:
            stack.enter_context(super().phase(name))
            if self._hosts is not None:
                stack.enter_context(self._hosts.local.phase(name))
            yield

    def note(self, text: str) -> None:
        """Say what this rank is doing; others learn it with its next collective."""
        super().note(text)
        if self._hosts is not None:
            self._hosts.note(text)

    def close(self) -> None:
        """Leave; ranks that still wait for this one raise ``PeerLostError``."""
        if self._hosts is not None:
            self._hosts.close()
        super().close()

    def _join_hosts(self, comms: CommsSettings) -> Hosts:
        job = self.broadcast_value(uuid.uuid4().hex)
        hosts: Any = None
        problem = ""
        try:
            hosts = Hosts(
                self._exchange,
                self._groups,
                job,
                super().phase,
                timeout_seconds=comms.timeout_seconds,
                stall_report_seconds=comms.stall_report_seconds,
            )
        except CollectiveError as error:
            problem = str(error)
        self._raise_together(problem)
        hosts.join_rail()
        return hosts  # type: ignore[no-any-return]  # None on a rank with a problem, which raised

    def _raise_together(self, problem: str) -> None:
        """Raise on all ranks if one has a problem.

        Raises:
            CollectiveError: Naming the first of them.
        """
        for rank, text in enumerate(self.all_gather_value(problem)):
            if text:
                raise CollectiveError(f"rank {rank}: {text}")

    def _choose(self, bucket_plan: BucketPlan) -> None:
        table = measure(
            self, self._candidates, lambda name, plan: self._build(name, plan, _HEADER_SIZE)
        )
        nbytes = gradient_bytes(bucket_plan)
        self.algorithm = choose(table, nbytes)
        if self.rank == 0:
            logger.info("%s", describe_choice(self.algorithm, table, nbytes, self._groups))

    def _build(
        self, name: str, plan: BucketPlan, header_size: int, kernels: Optional[Kernels] = None
    ) -> GradientReducer:
        if name == "ring":
            add = Ring(self._wire).add
            return GeneralReducer(self._exchange, plan, header_size, kernels, add=add)
        if name == "hierarchical" and self._hosts is not None:
            return self._build_hierarchical(self._hosts, plan, header_size, kernels)
        return GeneralReducer(self._exchange, plan, header_size, kernels)

    def _build_hierarchical(
        self, hosts: Hosts, plan: BucketPlan, header_size: int, kernels: Optional[Kernels]
    ) -> GradientReducer:
        made: Any = None
        problem = ""
        try:
            made = HierarchicalReducer(hosts, plan, header_size, kernels)
        except (PeerLostError, CollectiveTimeoutError) as error:
            self.abort(str(error))
            raise
        except CollectiveError as error:
            problem = str(error)
        self._raise_together(problem)  # a host that lacks the memory leaves no other one alone
        reducer: GradientReducer = made
        return reducer


def _platform_problem() -> str:
    try:
        check_platform()
    except CollectiveError as error:
        return str(error)
    return ""

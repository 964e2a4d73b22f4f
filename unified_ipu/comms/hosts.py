"""Ranks of several hosts: what those of one host share, and one rank a slice between the hosts.

A *rail* joins the ranks with the same index on each host; there are as many as the smallest host
has ranks. Waits inside a host and waits between hosts know nothing of each other, so each looks at
the other side while it is long: an error that one rank meets ends the waits of all, and a rank that
waits on one side says so on the other, where it is no fault of its own that it is late.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

from unified_ipu.comms.communicator import Communicator
from unified_ipu.comms.connect import connect
from unified_ipu.comms.exchange import Exchange
from unified_ipu.comms.shm import ShmCommunicator
from unified_ipu.comms.signature import Signature, describe_mismatch, name_ranks
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError, PeerLostError


class Hosts:
    """One rank's place among the hosts. Making one is collective over the ranks of each.

    Args:
        exchange: Of all ranks.
        groups: Ranks of each host, ``group_by_host``.
        job: Unique to this run and use, the same on all ranks.
        phase: Announces a phase to all ranks.
        timeout_seconds: How long a rank may be late.
        stall_report_seconds: After how long a late rank is logged.
    """

    def __init__(
        self,
        exchange: Exchange,
        groups: Sequence[Sequence[int]],
        job: str,
        phase: Callable[[str], ContextManager[None]],
        *,
        timeout_seconds: float,
        stall_report_seconds: float,
    ) -> None:
        self._exchange = exchange
        self._wire = exchange.wire
        self._phase = phase
        self._number = 0
        self._doing = ""
        self._excuses = ExitStack()
        self._excused: List[Callable[[str], ContextManager[None]]] = []
        self.groups = [tuple(group) for group in groups]
        self.num_rails = min(len(group) for group in groups)
        rank = self._wire.rank
        self.index = next(index for index, group in enumerate(groups) if rank in group)
        mine = self.groups[self.index]
        members = [self._wire.members[each] for each in mine]
        self.local: Communicator = connect(
            rank=mine.index(rank),
            size=len(mine),
            job=f"{job}/{self.index}",
            timeout_seconds=timeout_seconds,
            stall_report_seconds=stall_report_seconds,
            names=members,
        )
        if isinstance(self.local, ShmCommunicator):
            self.local.watch.look_also = self._look_between
        self._job = job
        self.rail: Optional[Exchange] = None

    def join_rail(self) -> None:
        """Connect with the other hosts; collective over all ranks, all of which have joined."""
        if self.local.rank < self.num_rails:
            rail = [group[self.local.rank] for group in self.groups]
            wire = self._wire.split(rail, f"{self._job}/rail {self.local.rank}")
            wire.look_also(self._look_inside)
            self.rail = Exchange(wire)

    @property
    def waiting_seconds(self) -> float:
        """Seconds this rank was blocked for others, inside its host and between hosts."""
        return self.local.waiting_seconds + (self.rail.waiting_seconds if self.rail else 0.0)

    @contextmanager
    def collective(self, signature: Signature) -> Iterator[None]:
        """Everything in it is one collective of all ranks.

        It ends by ``finish``, also before an error that all ranks raise alike. An error that leaves
        it without ends the job.

        Raises:
            CollectiveError: If a collective was interrupted before, or anyone has given up.
        """
        self._number = self._exchange.begin_elsewhere(signature)
        self._doing = signature.text
        try:
            with self._excuses:
                yield
        except CollectiveError as error:
            if self._doing:
                self._wire.abort(_kind(error), str(error))
                self._wire.check()  # the first cause of all ranks, which may be another one
            raise
        finally:
            self._doing = ""
            self._excused.clear()

    def finish(self) -> None:
        """All ranks have come to the end of the collective."""
        self._exchange.finish()
        self._doing = ""

    def check(self) -> None:
        """Raise if anyone has given up; to be asked after an error that may have another reason.

        Raises:
            CollectiveError: The same on all ranks.
        """
        if isinstance(self.local, ShmCommunicator):
            self.local.watch.check()
        self._wire.check()

    def note(self, text: str) -> None:
        """Say what this rank is doing, for reports of a stall."""
        self.local.note(text)
        if self.rail is not None:
            self.rail.note = text

    def close(self) -> None:
        """Leave."""
        if self.rail is not None and self.rail.close():
            self.rail.wire.close()
        self.local.close()

    def _look_between(self, late: Sequence[int]) -> None:
        """While ranks of this host are late: see what others say, and tell the other hosts.

        Raises:
            CollectiveError: If anyone has given up, or a late rank waits in another collective.
        """
        self._wire.check()
        self._compare(late)
        self._excuse(self._phase, late)

    def _look_inside(self, late: Sequence[int]) -> None:
        """While ranks of other hosts are late: see where they wait, and tell this host.

        Raises:
            CollectiveError: If a late rank waits in another collective.
        """
        self._compare(late)
        self._excuse(self.local.phase, late)

    def _compare(self, late: Sequence[int]) -> None:
        members = list(self._wire.members)
        for member in late if self._doing else []:
            number, operation = self._wire.entered(members.index(member))
            if number == self._number:
                texts: Dict[int, str] = {members[self._wire.rank]: self._doing, member: operation}
                self._wire.abort("mismatch", describe_mismatch(number, texts))
                self._wire.check()

    def _excuse(self, phase: Callable[[str], ContextManager[None]], late: Sequence[int]) -> None:
        """Announce until the end of the collective that this rank only waits for others."""
        if late and self._doing and phase not in self._excused:
            self._excused.append(phase)
            self._excuses.enter_context(phase(f"waiting for {name_ranks(late)} in {self._doing}"))


def group_by_host(keys: Sequence[str]) -> List[Tuple[int, ...]]:
    """Ranks of each host, hosts in the order of their first rank.

    Args:
        keys: What names the host of each rank.
    """
    groups: Dict[str, List[int]] = {}
    for rank, key in enumerate(keys):
        groups.setdefault(key, []).append(rank)
    return [tuple(group) for group in groups.values()]


def _kind(error: CollectiveError) -> str:
    if isinstance(error, PeerLostError):
        return "lost"
    return "timeout" if isinstance(error, CollectiveTimeoutError) else "mismatch"

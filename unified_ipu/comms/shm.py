"""The communicator of ranks on one host, over shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ContextManager, Dict, List, Optional

import numpy as np

from unified_ipu.comms import staged, values
from unified_ipu.comms.board import KIND_LOST, KIND_MISMATCH
from unified_ipu.comms.group import Group
from unified_ipu.comms.lanes import Lanes
from unified_ipu.comms.mailbox import MAILBOX_BYTES, Mailbox
from unified_ipu.comms.members import find_members
from unified_ipu.comms.reducer import Reducer
from unified_ipu.comms.segment import PAGE_BYTES, Segment, round_up
from unified_ipu.comms.signature import Signature, build_signature
from unified_ipu.comms.watch import Watch
from unified_ipu.errors import CollectiveError

if TYPE_CHECKING:
    from unified_ipu.comms.kernels import Kernels
    from unified_ipu.plan import BucketPlan


class ShmCommunicator:
    """``Communicator`` over shared memory; see ``connect`` and ``local_group``."""

    def __init__(self, group: Group, *, is_world: bool) -> None:
        self._group = group
        self._watch = group.watch
        self._is_world = is_world
        self._outgoing: Dict[int, Mailbox] = {}
        self._incoming: Dict[int, Mailbox] = {}
        self.rank = group.rank
        self.size = group.size

    @property
    def waiting_seconds(self) -> float:
        """Seconds this rank has been blocked for others, over all groups of its world."""
        return self._watch.waiting_seconds

    @property
    def watch(self) -> Watch:
        """The waits of this rank, for those who have to end them from outside."""
        return self._watch

    def all_reduce(self, array: Any, *, op: str = "sum", out: Any = None, name: str = "") -> Any:
        """Reduce over ranks, in rank order."""
        return staged.all_reduce(self._group, array, op=op, out=out, name=name)

    def reduce_scatter(
        self, array: Any, *, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce, and keep this rank's rows."""
        return staged.reduce_scatter(self._group, array, op=op, out=out, name=name)

    def all_gather(self, array: Any, *, name: str = "") -> List[Any]:
        """Arrays of all ranks, of any number of rows each."""
        return list(staged.all_gather(self._group, array, name=name))

    def broadcast(self, array: Any, *, root: int = 0, out: Any = None, name: str = "") -> Any:
        """The root's array on every rank."""
        return staged.broadcast(self._group, array, root=root, out=out, name=name)

    def reduce(
        self, array: Any, *, root: int, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce to the root; None elsewhere."""
        return staged.all_reduce(self._group, array, op=op, out=out, name=name, root=root)

    def send(self, array: Any, *, to: int, name: str = "") -> None:
        """Hand an array to one rank.

        Raises:
            CollectiveError: If it cannot be sent, or the other rank is lost.
        """
        self._watch.check()
        self._check_peer(to)
        if to not in self._outgoing:
            segment = Segment.create(MAILBOX_BYTES, f"mail {self.rank} to {to}")
            self._outgoing[to] = self._mailbox(segment, to)
            self._group.lanes.mail_flag(self.rank, to).post(segment.fd + 1)
        self._outgoing[to].send(array, name)

    def recv(self, *, source: int, out: Any = None, name: str = "") -> Any:
        """The next array from one rank.

        Raises:
            CollectiveError: If what was sent does not fit; then all ranks give up.
        """
        self._watch.check()
        self._check_peer(source)
        if source not in self._incoming:
            lanes = self._group.lanes
            flag = lanes.mail_flag(source, self.rank)
            self._watch.wait(flag, 1, lambda: lanes.stall_of(source, f"recv {name!r}"))
            fd = flag.words[flag.index] - 1
            segment = Segment.open(self._pid(source), fd, MAILBOX_BYTES)
            segment.close_fd()
            self._incoming[source] = self._mailbox(segment, source)
        array, problem = self._incoming[source].receive(out, name)
        if problem:
            me, other = self._group.members[self.rank], self._group.members[source]
            text = f"recv on rank {me} from rank {other}: {problem}"
            self._watch.abort(KIND_MISMATCH, me, text)
            self._watch.check()
        return array

    def barrier(self, name: str = "") -> None:
        """Return once all ranks are here."""
        self._group.enter(build_signature("barrier", name))
        self._group.finish()

    def split(self, color: Any, key: Optional[int] = None) -> Optional[ShmCommunicator]:
        """A communicator of the ranks with the same color, ordered by (key, rank)."""
        asked = values.all_gather_value(self._group, [color, key], "split")
        mine = find_members(asked, self.rank)
        members = [self._group.members[peer] for peer in mine]
        nbytes = Lanes.num_bytes(len(members))
        created = None
        problem = ""
        if mine and mine[0] == self.rank:
            try:
                created = Segment.create(nbytes, f"group {members}")
            except CollectiveError as error:
                problem = str(error)
        segment = self._share(created, problem, mine[0] if mine else None, nbytes)
        if segment is None:
            return None
        return ShmCommunicator(Group(segment, 0, self._watch, members), is_world=False)

    def broadcast_value(self, value: Any, root: int = 0) -> Any:
        """The root's JSON value on every rank."""
        return values.broadcast_value(self._group, value, root)

    def all_gather_value(self, value: Any) -> List[Any]:
        """Every rank's JSON value, in rank order."""
        return values.all_gather_value(self._group, value)

    def allocate_shared(self, nbytes: int, name: str) -> List[np.ndarray]:
        """Zeroed ``[nbytes]`` uint8 regions, one a rank, the same memory on all ranks.

        Raises:
            CollectiveError: On all ranks, if one of them cannot have or map the memory.
        """
        self._group.enter(build_signature(f"allocate_shared {nbytes} bytes", name))
        self._group.finish()
        each = round_up(max(nbytes, 1), PAGE_BYTES)
        created = None
        problem = ""
        if self.rank == 0:
            try:
                created = Segment.create(each * self.size, name)
            except CollectiveError as error:
                problem = str(error)
        segment = self._share(created, problem, 0, each * self.size)
        if segment is None:
            raise CollectiveError(f"no shared memory for {name!r}")
        return [segment.array[each * peer : each * peer + nbytes] for peer in range(self.size)]

    def reducer(
        self, bucket_plan: BucketPlan, header_size: int, kernels: Optional[Kernels] = None
    ) -> Reducer:
        """What sums gradients over these ranks."""
        return Reducer(self, bucket_plan, header_size, kernels, self._group.lanes.shares)

    def phase(self, name: str) -> ContextManager[None]:
        """Announce that this rank may be late for a good reason."""
        return self._watch.phase(name)

    def note(self, text: str) -> None:
        """Say what this rank is doing, for reports of a stall."""
        self._watch.board.note(text)

    def abort(self, cause: str) -> None:
        """Give up for all ranks."""
        me = self._group.members[self.rank]
        self._watch.abort(KIND_LOST, me, f"rank {me} gave up: {cause}")

    def close(self) -> None:
        """Leave; ranks that still wait for this one raise ``PeerLostError``."""
        for mailbox in self._outgoing.values():
            mailbox.linger()
            mailbox.segment.close_fd()
        self._outgoing.clear()
        self._group.close()
        if self._is_world:
            self._watch.board.leave()
            self._watch.close()

    def enter(self, signature: Signature, number: int = 0) -> List[int]:
        """Begin a collective of one's own."""
        return self._group.enter(signature, number)

    def meet(self) -> None:
        """A further barrier inside it."""
        self._group.meet()

    def finish(self) -> None:
        """End it."""
        self._group.finish()

    def _share(
        self, created: Optional[Segment], problem: str, creator: Optional[int], nbytes: int
    ) -> Optional[Segment]:
        """Map what ``creator`` has made.

        Raises:
            CollectiveError: On all ranks, if anyone cannot.
        """
        offers = values.all_gather_value(
            self._group, [created.fd if created is not None else -1, problem], "share memory"
        )
        segment = created
        failures = [text for _, text in offers if text]
        trouble = ""
        if not failures and created is None and creator is not None:
            try:
                segment = Segment.open(self._pid(creator), offers[creator][0], nbytes)
            except CollectiveError as error:
                trouble = str(error)
        failures += [
            text for text in values.all_gather_value(self._group, trouble, "memory shared") if text
        ]
        if segment is not None:
            segment.close_fd()
        if failures:
            raise CollectiveError(failures[0])
        return segment

    def _mailbox(self, segment: Segment, peer: int) -> Mailbox:
        lanes = self._group.lanes
        return Mailbox(segment, self._watch, lambda operation: lanes.stall_of(peer, operation))

    def _pid(self, peer: int) -> int:
        return self._watch.board.pid(self._group.members[peer])

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise CollectiveError(
                f"rank {peer} is not another rank of this group of {self.size}; "
                f"this is rank {self.rank}"
            )

"""The communicator over any ``Wire``: the same rules as shared memory, whatever moves the bytes.

What is short, and everything but sums, is gathered and reduced by every rank itself, in rank order.
Long sums go through the wire's own addition, whose order is the wire's.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Tuple

import numpy as np

from unified_ipu.comms.arrays import (
    Flat,
    Target,
    check_operation,
    combine,
    separate,
    split_evenly,
    to_flat,
    to_target,
)
from unified_ipu.comms.exchange import INLINE_BYTES, Exchange
from unified_ipu.comms.general_reducer import GeneralReducer
from unified_ipu.comms.members import find_members
from unified_ipu.comms.messages import receive, send
from unified_ipu.comms.reduction import GradientReducer
from unified_ipu.comms.signature import Signature, build_signature
from unified_ipu.comms.staged import check_root
from unified_ipu.comms.values import encode
from unified_ipu.comms.wire import Wire
from unified_ipu.errors import CollectiveError

if TYPE_CHECKING:
    from unified_ipu.comms.kernels import Kernels
    from unified_ipu.plan import BucketPlan

_PIECE_BYTES = 2**20  # of each rank, where every rank gathers all to reduce them itself


class GeneralCommunicator:
    """``Communicator`` over a ``Wire``."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._exchange = Exchange(wire)
        self._phases: List[str] = []
        self._splits = 0
        self.rank = wire.rank
        self.size = len(wire.members)

    @property
    def waiting_seconds(self) -> float:
        """Seconds this rank was blocked until all had come to a collective, in total."""
        return self._exchange.waiting_seconds

    def all_reduce(self, array: Any, *, op: str = "sum", out: Any = None, name: str = "") -> Any:
        """Reduce over ranks; long sums in the order of the transport, the same on all ranks."""
        return self._reduce(array, op=op, out=out, name=name)

    def reduce(
        self, array: Any, *, root: int, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce to the root; None elsewhere. Costs as much as ``all_reduce``."""
        return self._reduce(array, op=op, out=out, name=name, root=root)

    def reduce_scatter(
        self, array: Any, *, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce, and keep this rank's rows. Costs as much as ``all_reduce``."""
        source = to_flat(array)
        problem = source.problem or check_operation(op, source.array.dtype)
        if not problem and source.array.ndim == 0:
            problem = "a scalar has no axis 0 to scatter"
        rows = 0 if problem else source.array.shape[0]
        start, stop = split_evenly(rows, self.size)[self.rank]
        target = to_target(out, (stop - start, *source.array.shape[1:]), source.array.dtype)
        text = f"reduce_scatter {op} {source.dtype} {source.array.shape}"
        signature = build_signature(text, name, problem or target.problem)
        total = np.empty(source.array.shape, source.array.dtype)
        self._reduce_flat(source.flat, op, total.reshape(-1), signature)
        self._exchange.finish()
        target.flat[...] = total[start:stop].reshape(-1)
        return target.finish()

    def all_gather(self, array: Any, *, name: str = "") -> List[Any]:
        """Arrays of all ranks, of any number of rows each."""
        source = to_flat(array)
        problem = source.problem
        if not problem and source.array.ndim == 0:
            problem = "a scalar has no axis 0 to gather along; reshape it to (1,)"
        tail = source.array.shape[1:]
        rows = 0 if problem else source.array.shape[0]
        dims = ", ".join(["*", *(str(dim) for dim in tail)])
        signature = build_signature(f"all_gather {source.dtype} ({dims})", name, problem)
        counts, data = self._exchange.begin(signature, rows, source.flat.view(np.uint8))
        self._exchange.finish()
        dtype = source.array.dtype
        return [part.view(dtype).reshape(count, *tail) for count, part in zip(counts, data)]

    def broadcast(self, array: Any, *, root: int = 0, out: Any = None, name: str = "") -> Any:
        """The root's array on every rank."""
        source = to_flat(array)
        problem = source.problem or check_root(root, self.size)
        target = _target(source, out, problem)
        text = f"broadcast root={root} {source.dtype} {source.array.shape}"
        signature = build_signature(text, name, problem or target.problem)
        mine = source.flat.view(np.uint8)
        _, data = self._exchange.begin(signature, 0, mine if self.rank == root else mine[:0])
        self._exchange.finish()
        target.flat.view(np.uint8)[...] = data[root]
        return target.finish()

    def send(self, array: Any, *, to: int, name: str = "") -> None:
        """Hand an array to one rank.

        Raises:
            CollectiveError: If it cannot be sent, or the other rank is lost.
        """
        self._check_peer(to)
        send(self._exchange, array, to=to, name=name)

    def recv(self, *, source: int, out: Any = None, name: str = "") -> Any:
        """The next array from one rank.

        Raises:
            CollectiveError: If what was sent does not fit; then all ranks give up.
        """
        self._check_peer(source)
        return receive(self._exchange, source=source, out=out, name=name)

    def barrier(self, name: str = "") -> None:
        """Return once all ranks are here."""
        self._exchange.begin(build_signature("barrier", name))
        self._exchange.finish()

    def split(self, color: Any, key: Optional[int] = None) -> Optional[GeneralCommunicator]:
        """A communicator of the ranks with the same color, ordered by (key, rank)."""
        mine = find_members(self._gather_value([color, key], "split"), self.rank)
        self._splits += 1
        return self._over(self._wire.split(mine, f"{self._splits}/{mine[0]}")) if mine else None

    def broadcast_value(self, value: Any, root: int = 0) -> Any:
        """The root's JSON value on every rank."""
        data, problem = encode(value if self.rank == root else None)
        problem = problem or check_root(root, self.size)
        signature = build_signature(f"broadcast_value root={root}", problem=problem)
        _, parts = self._exchange.begin(signature, 0, data)
        self._exchange.finish()
        return json.loads(parts[root].tobytes())

    def all_gather_value(self, value: Any) -> List[Any]:
        """Every rank's JSON value, in rank order."""
        return self._gather_value(value, "all_gather_value")

    def allocate_shared(self, nbytes: int, name: str) -> List[np.ndarray]:
        """Refused.

        Raises:
            CollectiveError: Always: these ranks share no memory.
        """
        self._exchange.begin(
            build_signature(
                f"allocate_shared {nbytes} bytes",
                name,
                'ranks of several hosts share no memory; comms.transport = "shm" does on one host',
            )
        )
        return []

    def reducer(
        self, bucket_plan: BucketPlan, header_size: int, kernels: Optional[Kernels] = None
    ) -> GradientReducer:
        """What sums gradients over these ranks."""
        return GeneralReducer(self._exchange, bucket_plan, header_size, kernels)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce that this rank may be late for a good reason."""
        self._phases.append(name)
        self._wire.announce(name)
        try:
            yield
        finally:
            self._phases.pop()
            self._wire.announce(self._phases[-1] if self._phases else None)

    def note(self, text: str) -> None:
        """Say what this rank is doing; others learn it with its next collective."""
        self._exchange.note = text

    def abort(self, cause: str) -> None:
        """Give up for all ranks."""
        me = self._wire.members[self.rank]
        self._wire.abort("lost", f"rank {me} gave up: {cause}")

    def close(self) -> None:
        """Leave; ranks that still wait for this one raise ``PeerLostError``."""
        if self._exchange.close():
            self._wire.close()

    def enter(self, signature: Signature, number: int = 0) -> List[int]:
        """Begin a collective of one's own."""
        return self._exchange.begin(signature, number)[0]

    def meet(self) -> None:
        """A further barrier inside it."""
        self._wire.gather(np.zeros(1, np.uint8), self._exchange.waiting())

    def finish(self) -> None:
        """End it."""
        self._exchange.finish()

    def _over(self, wire: Wire) -> GeneralCommunicator:
        """A communicator of the same class over another wire."""
        return GeneralCommunicator(wire)

    def _gather_value(self, value: Any, what: str) -> List[Any]:
        data, problem = encode(value)
        _, parts = self._exchange.begin(build_signature(what, problem=problem), 0, data)
        self._exchange.finish()
        return [json.loads(part.tobytes()) for part in parts]

    def _reduce(
        self, array: Any, *, op: str, out: Any, name: str, root: Optional[int] = None
    ) -> Any:
        source = to_flat(array)
        keeps = root is None or root == self.rank
        problem = source.problem or check_operation(op, source.array.dtype)
        if root is not None:
            problem = problem or check_root(root, self.size)
        # A rank that does not keep the result works on a copy: its input stays as it is.
        target = _target(source, out if keeps else None, problem)
        source = separate(source, target, _PIECE_BYTES)
        verb = "all_reduce" if root is None else f"reduce root={root}"
        text = f"{verb} {op} {source.dtype} {source.array.shape}"
        signature = build_signature(text, name, problem or target.problem)
        self._reduce_flat(source.flat, op, target.flat, signature)
        self._exchange.finish()
        return target.finish() if keeps else None

    def _reduce_flat(
        self, flat: np.ndarray, op: str, result: np.ndarray, signature: Signature
    ) -> None:
        is_short = flat.nbytes <= INLINE_BYTES and not signature.problem
        data = flat.view(np.uint8) if is_short else np.empty(0, np.uint8)
        _, parts = self._exchange.begin(signature, 0, data)
        waiting = self._exchange.waiting()
        with np.errstate(all="ignore"):
            if is_short:
                combine([part.view(flat.dtype) for part in parts], op, result)
                return
            wide, view = self._addable(flat, op)
            if view is not None:
                self._wire.add(view, waiting)
                result[...] = wide / self.size if op == "mean" else wide
                return
            step = _PIECE_BYTES // flat.itemsize
            for first in range(0, flat.size, step):
                piece = flat[first : first + step]
                gathered = self._wire.gather(piece.view(np.uint8), waiting)
                views = [part.view(flat.dtype) for part in gathered]
                combine(views, op, result[first : first + step])

    def _addable(self, flat: np.ndarray, op: str) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """A copy that may be overwritten, and how the wire adds it up; None if it cannot."""
        if op not in {"sum", "mean"}:
            return flat, None
        wide = flat.astype(np.float32) if flat.dtype == np.float16 else flat
        view = wide.view(wide.real.dtype) if wide.dtype.kind == "c" else wide
        if not self._wire.adds(view.dtype):
            return flat, None
        wide = wide.copy() if wide is flat else wide
        return wide, wide.view(view.dtype)

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise CollectiveError(
                f"rank {peer} is not another rank of this group of {self.size}; "
                f"this is rank {self.rank}"
            )


def _target(source: Flat, out: Any, problem: str) -> Target:
    if problem:
        return Target(None, source.flat)
    return to_target(out, source.array.shape, source.array.dtype)

"""What a communicator offers, whatever moves the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ContextManager, List, Optional, Protocol, runtime_checkable

import numpy as np

from unified_ipu.comms.reduction import GradientReducer
from unified_ipu.comms.signature import Signature

if TYPE_CHECKING:
    from unified_ipu.comms.kernels import Kernels
    from unified_ipu.plan import BucketPlan


@runtime_checkable
class Communicator(Protocol):
    """Collectives over a group of ranks; one thread a rank, all ranks in the same order.

    Arrays are numpy's, or anything on the host with ``__array__`` or ``__dlpack__``. A collective
    returns a new array, the same bits on every rank, or fills ``out`` (which may be the input) and
    returns it. If ranks disagree about what they call, or one of them cannot do it, every rank
    raises ``CollectiveError``.
    """

    @property
    def rank(self) -> int:
        """Index of this process in the group."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        ...

    @property
    def waiting_seconds(self) -> float:
        """Seconds this rank has been blocked for others, in total."""
        ...

    def all_reduce(self, array: Any, *, op: str = "sum", out: Any = None, name: str = "") -> Any:
        """Reduce over ranks: op is sum, max, min or mean (floats only)."""
        ...

    def reduce_scatter(
        self, array: Any, *, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce, and keep this rank's rows: axis 0 split evenly, longer parts first."""
        ...

    def all_gather(self, array: Any, *, name: str = "") -> List[Any]:
        """Arrays of all ranks; their numbers of rows may differ and may be 0."""
        ...

    def broadcast(self, array: Any, *, root: int = 0, out: Any = None, name: str = "") -> Any:
        """The root's array on every rank; all ranks give one of its shape and dtype."""
        ...

    def reduce(
        self, array: Any, *, root: int, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce to the root; None on other ranks, whose input and ``out`` stay as they are."""
        ...

    def send(self, array: Any, *, to: int, name: str = "") -> None:
        """Hand an array to one rank that calls ``recv``; may return before it has."""
        ...

    def recv(self, *, source: int, out: Any = None, name: str = "") -> Any:
        """The next array from one rank."""
        ...

    def barrier(self, name: str = "") -> None:
        """Return once all ranks are here."""
        ...

    def split(self, color: Any, key: Optional[int] = None) -> Optional[Communicator]:
        """A communicator of the ranks with the same color, ordered by (key, rank).

        Colors are JSON values; None joins no group and returns None.
        """
        ...

    def broadcast_value(self, value: Any, root: int = 0) -> Any:
        """The root's JSON value on every rank."""
        ...

    def all_gather_value(self, value: Any) -> List[Any]:
        """Every rank's JSON value, in rank order."""
        ...

    def allocate_shared(self, nbytes: int, name: str) -> List[np.ndarray]:
        """Zeroed ``[nbytes]`` uint8 regions, one a rank, the same memory on all ranks.

        Refused on all ranks where they share none.
        """
        ...

    def reducer(
        self, bucket_plan: BucketPlan, header_size: int, kernels: Optional[Kernels] = None
    ) -> GradientReducer:
        """What sums gradients over these ranks, in shared memory where there is any."""
        ...

    def phase(self, name: str) -> ContextManager[None]:
        """Announce that this rank may be late for a good reason: peers report, none times out."""
        ...

    def note(self, text: str) -> None:
        """Say what this rank is doing, for reports of a stall; costs under a microsecond."""
        ...

    def abort(self, cause: str) -> None:
        """Give up for all ranks: every wait from now on raises ``PeerLostError`` with the cause."""
        ...

    def close(self) -> None:
        """Leave; ranks that still wait for this one raise ``PeerLostError``."""
        ...

    def enter(self, signature: Signature, number: int = 0) -> List[int]:
        """Begin a collective of one's own: a barrier at which all signatures are compared.

        Returns:
            The ``number`` of every rank.
        """
        ...

    def meet(self) -> None:
        """A further barrier inside a collective that was entered."""
        ...

    def finish(self) -> None:
        """End the collective that was entered."""
        ...

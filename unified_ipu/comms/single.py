"""A world of one rank: the same interface, no shared memory, no waiting."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, List, Optional

import numpy as np

from unified_ipu.comms.arrays import Flat, check_operation, combine, to_flat, to_target
from unified_ipu.comms.reducer import Reducer
from unified_ipu.comms.signature import Signature, build_signature
from unified_ipu.comms.staged import check_root
from unified_ipu.comms.values import encode
from unified_ipu.errors import CollectiveError, PeerLostError

if TYPE_CHECKING:
    from unified_ipu.comms.kernels import Kernels
    from unified_ipu.plan import BucketPlan

_LINE_BYTES = 64


class SingleCommunicator:
    """``Communicator`` of one rank: checks what a larger group would, and copies."""

    rank = 0
    size = 1
    waiting_seconds = 0.0

    def __init__(self) -> None:
        self._cause = ""
        self._closed = False

    def all_reduce(self, array: Any, *, op: str = "sum", out: Any = None, name: str = "") -> Any:
        """The array itself, copied."""
        return self._copy("all_reduce", array, op=op, out=out, name=name)

    def reduce_scatter(
        self, array: Any, *, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """All rows, copied."""
        return self._copy("reduce_scatter", array, op=op, out=out, name=name, min_dims=1)

    def all_gather(self, array: Any, *, name: str = "") -> List[Any]:
        """A list of one copy."""
        return [self._copy("all_gather", array, op="", out=None, name=name, min_dims=1)]

    def broadcast(self, array: Any, *, root: int = 0, out: Any = None, name: str = "") -> Any:
        """The array itself, copied."""
        return self._copy("broadcast", array, op="", out=out, name=name, root=root)

    def reduce(
        self, array: Any, *, root: int, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """The array itself, copied."""
        return self._copy("reduce", array, op=op, out=out, name=name, root=root)

    def send(self, array: Any, *, to: int, name: str = "") -> None:  # noqa: ARG002  # the interface
        """There is nobody.

        Raises:
            CollectiveError: Always.
        """
        raise CollectiveError(f"rank {to} is not another rank of this group of 1")

    def recv(self, *, source: int, out: Any = None, name: str = "") -> Any:  # noqa: ARG002  # the interface
        """There is nobody.

        Raises:
            CollectiveError: Always.
        """
        raise CollectiveError(f"rank {source} is not another rank of this group of 1")

    def barrier(self, name: str = "") -> None:
        """Return at once."""
        self.enter(build_signature("barrier", name))
        self.finish()

    def split(self, color: Any, key: Optional[int] = None) -> Optional[SingleCommunicator]:  # noqa: ARG002  # the interface
        """Another communicator of one rank; None for the color None."""
        self.barrier("split")
        return None if color is None else SingleCommunicator()

    def broadcast_value(self, value: Any, root: int = 0) -> Any:
        """The value as it would arrive."""
        data, problem = encode(value)
        self.enter(build_signature("broadcast_value", "", problem or check_root(root, 1)))
        self.finish()
        return json.loads(data.tobytes())

    def all_gather_value(self, value: Any) -> List[Any]:
        """The value as it would arrive, in a list."""
        return [self.broadcast_value(value)]

    def allocate_shared(self, nbytes: int, name: str) -> List[np.ndarray]:  # noqa: ARG002  # the interface
        """Plain zeroed memory, 64-byte aligned."""
        room = np.zeros(nbytes + _LINE_BYTES, np.uint8)
        first = -int(room.__array_interface__["data"][0]) % _LINE_BYTES
        return [room[first : first + nbytes]]

    def reducer(
        self, bucket_plan: BucketPlan, header_size: int, kernels: Optional[Kernels] = None
    ) -> Reducer:
        """What sums gradients over these ranks."""
        return Reducer(self, bucket_plan, header_size, kernels, None)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:  # noqa: ARG002  # the interface
        """Nobody waits, so nothing is announced."""
        yield

    def note(self, text: str) -> None:
        """Nobody reads it."""

    def abort(self, cause: str) -> None:
        """Refuse all collectives from now on; the first cause counts."""
        self._cause = self._cause or f"rank 0 gave up: {cause}"

    def close(self) -> None:
        """Refuse all collectives from now on."""
        self._closed = True

    def enter(self, signature: Signature, number: int = 0) -> List[int]:
        """Begin a collective of one's own.

        Raises:
            CollectiveError: If the signature carries a problem, or this communicator is closed.
            PeerLostError: After ``abort``.
        """
        if self._cause:
            raise PeerLostError(self._cause)
        if self._closed:
            raise CollectiveError(f"{signature.text}: this communicator is closed")
        if signature.problem:
            raise CollectiveError(signature.text)
        return [number]

    def meet(self) -> None:
        """Return at once."""

    def finish(self) -> None:
        """Nothing is left to do."""

    def _copy(
        self,
        verb: str,
        array: Any,
        *,
        op: str,
        out: Any,
        name: str,
        root: int = 0,
        min_dims: int = 0,
    ) -> Any:
        source = to_flat(array)
        problem = source.problem or (check_operation(op, source.array.dtype) if op else "")
        problem = problem or check_root(root, 1) or _check_dims(source, min_dims)
        target = to_target(out, source.array.shape, source.array.dtype)
        problem = problem or target.problem
        text = f"{verb} {op} {source.dtype} {source.array.shape}"
        self.enter(build_signature(text, name, problem))
        combine([source.flat], "sum", target.flat)
        self.finish()
        return target.finish()


def _check_dims(source: Flat, min_dims: int) -> str:
    return "a scalar has no axis 0; reshape it to (1,)" if source.array.ndim < min_dims else ""

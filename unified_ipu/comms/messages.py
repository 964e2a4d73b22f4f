"""One array after another from one rank to another, over a ``Wire``: a header, then its bytes."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np

from unified_ipu.comms.arrays import to_flat
from unified_ipu.comms.exchange import Exchange
from unified_ipu.comms.letter import open_header, write_header
from unified_ipu.errors import CollectiveError

_PIECE_BYTES = 2**20


def send(exchange: Exchange, value: Any, *, to: int, name: str) -> None:
    """Post the header and the bytes of an array.

    Raises:
        CollectiveError: If it is no array that can be sent, or the other rank is lost.
    """
    wire = exchange.wire
    wire.check()
    source = to_flat(value)
    operation = f"send {source.dtype} {source.array.shape} {name!r}"
    waiting = exchange.message(operation)
    wire.post(write_header(source, name), to, waiting)
    if source.problem:
        raise CollectiveError(f"{operation}: {source.problem}")
    data = source.flat.view(np.uint8)
    for first in range(0, data.size, _PIECE_BYTES):
        wire.post(data[first : first + _PIECE_BYTES], to, waiting)


def receive(exchange: Exchange, *, source: int, out: Any, name: str) -> Any:
    """Take the next array.

    Raises:
        CollectiveError: If it does not fit; then all ranks give up.
    """
    wire = exchange.wire
    wire.check()
    array, problem = _receive(exchange, source, out, name)
    if problem:
        me, other = wire.members[wire.rank], wire.members[source]
        wire.abort("mismatch", f"recv on rank {me} from rank {other}: {problem}")
        wire.check()
    return array


def _receive(exchange: Exchange, source: int, out: Any, name: str) -> Tuple[Any, str]:
    waiting = exchange.message(f"recv {name!r}")
    target, problem = open_header(exchange.wire.take(source, waiting), out, name)
    if problem:
        return None, problem
    data = target.flat.view(np.uint8)
    first = 0
    while first < data.size:
        piece = exchange.wire.take(source, waiting)
        data[first : first + piece.size] = piece
        first += piece.size
    return target.finish(), ""

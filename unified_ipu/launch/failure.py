"""How a rank failed, and how it tells its launcher: frames on the report pipe."""

from __future__ import annotations

import json
import os
import signal
import struct
import traceback
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Iterator, Optional, Tuple

from unified_ipu.errors import PeerLostError

_HEAD = struct.Struct(">cQ")  # kind, length of what follows
FAILURE = b"E"
RESULT = b"R"


@dataclass(frozen=True)
class Failure:
    """Why a rank did not end well.

    Args:
        rank: Of the failed process.
        status: Its exit status, or minus the number of the signal that ended it.
        type: Name of the exception's class, or ``""`` if there was none.
        text: Message of the exception.
        traceback: As Python prints it.
        is_consequence: It failed because another rank had failed.
    """

    rank: int
    status: int
    type: str = ""
    text: str = ""
    traceback: str = ""
    is_consequence: bool = False

    @property
    def exit_status(self) -> int:
        """What a shell would see: 128 plus the number for a signal."""
        return 128 - self.status if self.status < 0 else self.status

    @property
    def headline(self) -> str:
        """What happened, on one line."""
        if self.type:
            first_line = (self.text.splitlines() or [""])[0]
            return f"failed: {self.type}: {first_line}" if first_line else f"failed: {self.type}"
        if self.status >= 0:
            return f"exited with status {self.status}"
        name = _signal_name(-self.status)
        hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"

    def describe(self, world_size: int) -> str:
        """Name the rank, what happened, and the traceback if there is one.

        Args:
            world_size: Number of processes.
        """
        text = f"rank {self.rank} of {world_size} {self.headline}"
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text


def failure_of(error: BaseException, *, rank: int, hide: Tuple[str, ...] = ()) -> Failure:
    """Describe an exception.

    Args:
        error: As it was caught.
        rank: Of this process.
        hide: File names whose frames at the top of the traceback are ours, not the user's.
    """
    frames: Optional[TracebackType] = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in hide:
        frames = frames.tb_next
    return Failure(
        rank=rank,
        status=1,
        type=type(error).__name__,
        text=str(error),
        traceback="".join(traceback.format_exception(type(error), error, frames)),
        is_consequence=any(isinstance(link, PeerLostError) for link in _chain(error)),
    )


def encode_failure(failure: Failure) -> bytes:
    """The frame of a failure."""
    body = json.dumps(asdict(failure)).encode()
    return _HEAD.pack(FAILURE, len(body)) + body


def encode_result(body: bytes) -> bytes:
    """The frame of a pickled result."""
    return _HEAD.pack(RESULT, len(body)) + body


def decode_failure(body: bytes) -> Failure:
    """The failure inside a frame."""
    return Failure(**json.loads(body.decode()))


def read_frames(descriptor: int) -> Iterator[Tuple[bytes, bytes]]:
    """Yield ``(kind, body)`` of each whole frame until the other end is closed.

    Args:
        descriptor: Reading end of a pipe.
    """
    buffer = bytearray()
    while True:
        chunk = os.read(descriptor, 1 << 20)
        if not chunk:
            return
        buffer += chunk
        while len(buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(buffer)
            end = _HEAD.size + length
            if len(buffer) < end:
                break
            body = bytes(buffer[_HEAD.size : end])
            del buffer[:end]
            yield kind, body


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however often the pipe is full.

    Args:
        descriptor: Writing end.
        data: Any number of bytes.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = set()
    link: Optional[BaseException] = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

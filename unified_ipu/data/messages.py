"""What the data process and a rank say to each other over one local socket.

``SOCK_SEQPACKET`` keeps message boundaries and reports the death of the other side at once. A
message is a fixed header and, for some kinds, JSON behind it; nothing is pickled.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import sys
from enum import IntEnum
from typing import Any, NamedTuple, Optional, Tuple

from unified_ipu.errors import DataError

_HEADER = struct.Struct("<IIIIQQQ")
_MAX_BYTES = 1 << 17
_ROOM = socket.CMSG_SPACE(4)
_PEER_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid; unix(7)


class Kind(IntEnum):
    """What a message is about; R: sent by a rank, W: by the data process."""

    HELLO = 1  # R: who I am; payload: token
    READY = 2  # W: the pipeline is built
    OPEN = 3  # R: stream number, epoch (ordinal), first update (rows)
    RELEASE = 4  # R: slots of a generation are free again, one bit each (ordinal)
    LAYOUT = 5  # W: what lies where in slots of that layout number
    ARENA = 6  # W: new shared memory, its descriptor beside; slot bytes (rows), count (slot)
    BATCH = 7  # W: a micro-batch lies in a slot
    ERROR = 8  # W: what failed; payload: text
    EXTENT = 9  # W: a stream has that many samples (rows) at least; if slot is 1, at most


class Message(NamedTuple):
    """One message; what a field means depends on the kind."""

    kind: Kind
    slot: int = 0
    generation: int = 0
    layout: int = 0
    stream: int = 0
    ordinal: int = 0
    rows: int = 0
    payload: Any = None

    def to_bytes(self) -> bytes:
        """Header and payload, cut to what a socket takes in one piece."""
        header = _HEADER.pack(*self[:-1])
        return header if self.payload is None else header + json.dumps(self.payload).encode()

    @classmethod
    def from_bytes(cls, data: bytearray) -> Message:
        """Read what ``to_bytes`` wrote."""
        kind, slot, generation, layout, stream, ordinal, rows = _HEADER.unpack_from(data)
        text = data[_HEADER.size :]
        payload = json.loads(text.decode()) if text else None
        return cls(Kind(kind), slot, generation, layout, stream, ordinal, rows, payload)


def shorten(text: str, limit: int = 16000) -> str:
    """Keep the beginning and the end of a text that is too long for a message."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n[...]\n{text[-limit // 2 :]}"


class Channel:
    """One end of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray(_MAX_BYTES)
        self._buffers = [self._buffer]

    def fileno(self) -> int:
        """Descriptor of the socket, for ``poll``."""
        return self._connection.fileno()

    def send(self, message: Message, descriptor: Optional[int] = None) -> None:
        """Send one message, with a file descriptor if there is one to share."""
        if descriptor is None:
            self._connection.send(message.to_bytes())
            return
        rights = array.array("i", [descriptor])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        self._connection.sendmsg([message.to_bytes()], ancillary)

    def set_patience(self, seconds: float) -> None:
        """Let ``receive`` raise ``BlockingIOError`` when nothing comes for that long."""
        whole = int(seconds)
        time = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)

    def receive(self, *, wait: bool = True) -> Tuple[Optional[Message], Optional[int]]:
        """Return a message and its descriptor; ``(None, None)`` when the other side is gone.

        Without ``wait`` it raises ``BlockingIOError`` when there is none.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
        try:
            size, ancillary, _, _ = self._connection.recvmsg_into(self._buffers, _ROOM, flags)
        except ConnectionResetError:  # gone with something of ours unread
            return None, None
        descriptor: Optional[int] = None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptor = int.from_bytes(content[:4], sys.byteorder)
        if not size:
            return None, None
        return Message.from_bytes(self._buffer[:size]), descriptor

    def check_peer(self) -> None:
        """Refuse a connection from another user.

        Raises:
            DataError: If the other side runs under another user id.
        """
        size = _PEER_CREDENTIALS.size
        raw = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        _, user, _ = _PEER_CREDENTIALS.unpack(raw)
        if user != os.getuid():
            raise DataError(
                f"a process of user {user} tried to connect; expected user {os.getuid()}"
            )

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()

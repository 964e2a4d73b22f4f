"""A rank's end of the ring: micro-batches as arrays that lie in the slots themselves.

A slot goes back when the last array over it is gone, whoever holds it (a view, a tensor, a graph):
``weakref.finalize`` on the one array behind all views sends the message, from any thread, without
a lock. A user who keeps batches gets private copies once all slots but one are held.
"""

from __future__ import annotations

import logging
import select
import weakref
from typing import Callable, Dict, Optional, Set

import numpy as np

from unified_ipu.data.arena import Arena
from unified_ipu.data.feed import Delivery
from unified_ipu.data.layout import Layout, tree_of
from unified_ipu.data.messages import Channel, Kind, Message
from unified_ipu.errors import DataError

Held = Set[int]

_STALL_SECONDS = 30.0
_log = logging.getLogger("unified_ipu.data")


class RingReader:
    """Receives the micro-batches of one rank.

    Args:
        channel: To the data process.
        name: Of the loader.
        on_copy: Called for each batch that had to be copied.
        explain_end: Says how the data process ended, for the error.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        name: str = "loader",
        on_copy: Callable[[], None],
        explain_end: Callable[[], str],
    ) -> None:
        self._channel = channel
        self._name = name
        self._on_copy = on_copy
        self._explain_end = explain_end
        self._arena: Optional[Arena] = None
        self._layouts: Dict[int, Layout] = {}
        self._held: Held = set()
        self._failure: Optional[str] = None

    def send(self, message: Message) -> None:
        """Send a message; that the other side is gone shows when its answer is awaited."""
        try:
            self._channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return

    def next_batch(self) -> Message:
        """Wait for the next micro-batch, or for READY.

        Raises:
            DataError: If the pipeline failed or the data process is gone.
        """
        if self._failure is not None:
            raise DataError(self._failure)
        while True:
            self._wait()
            message, descriptor = self._channel.receive()
            if message is None:
                self._failure = self._explain_end()
                raise DataError(self._failure)
            if message.kind == Kind.ERROR:
                self._failure = str(message.payload)
                raise DataError(self._failure)
            if message.kind == Kind.LAYOUT:
                self._layouts[message.layout] = Layout.from_payload(message.payload)
            elif message.kind == Kind.ARENA and descriptor is not None:
                self._arena = Arena(message.rows, message.slot, message.generation, descriptor)
                self._arena.close()
                self._held = set()
            elif message.kind in {Kind.BATCH, Kind.READY}:
                return message

    def _wait(self) -> None:
        """Say so when nothing comes for long; how long a pipeline may take is the user's choice."""
        waited = 0.0
        while not select.select([self._channel], [], [], _STALL_SECONDS)[0]:
            waited += _STALL_SECONDS
            _log.warning(
                "%s: no batch for %.0f s; the data process (its output stands above) is still at "
                "it or stuck",
                self._name,
                waited,
            )

    def take(self, batch: Message) -> Delivery:
        """Return the micro-batch behind a message, as the caller's own arrays.

        Raises:
            DataError: If it lies in memory that was never sent.
        """
        arena, layout = self._arena, self._layouts[batch.layout]
        if arena is None or arena.generation != batch.generation:
            raise DataError("the data process named memory that it has not sent")
        base = arena.slot(batch.slot, layout.num_bytes)
        if len(self._held) + 1 >= arena.num_slots:
            base = _private(base)
            self._on_copy()
            self.drop(batch)
        else:
            self._held.add(batch.slot)
            release = Message(Kind.RELEASE, slot=batch.slot, generation=batch.generation)
            finalizer = weakref.finalize(base, _release, self._channel, self._held, release)
            finalizer.atexit = False
        ids, *leaves = layout.views(base)
        return Delivery(ids.copy(), tree_of(layout.form, leaves))

    def drop(self, batch: Message) -> None:
        """Give a slot back unread."""
        self.send(Message(Kind.RELEASE, slot=batch.slot, generation=batch.generation))

    def close(self) -> None:
        """Close the connection; arrays that were handed out stay valid."""
        self._channel.close()


def _private(base: np.ndarray) -> np.ndarray:
    """Copy to memory that starts on a 64-byte line."""
    room = np.empty(len(base) + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + len(base)]
    np.copyto(copy, base)
    return copy


def _release(channel: Channel, held: Held, release: Message) -> None:
    held.discard(release.slot)
    try:
        channel.send(release)
    except OSError:
        return  # closed, or the data process is gone: nobody needs the slot

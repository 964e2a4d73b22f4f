"""A rank's end of the ring: micro-batches as arrays that lie in the slots themselves.

A slot goes back when the last array over it is gone, whoever holds it (a view, a tensor, a graph).
A user who keeps batches gets private copies once all slots but one are held.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Callable, Deque, Dict, Optional, Tuple

import numpy as np

from unified_ipu.data.arena import Arena
from unified_ipu.data.feed import Delivery
from unified_ipu.data.layout import Layout, tree_of
from unified_ipu.data.messages import Channel, Kind, Message
from unified_ipu.data.slot_returns import SlotReturns
from unified_ipu.errors import DataError

_STALL_SECONDS = 30.0
_log = logging.getLogger("unified_ipu.data")


class RingReader:
    """Receives the micro-batches of one rank.

    Args:
        channel: To the data process.
        name: Of the loader.
        on_copy: Called with the bytes of each batch that had to be copied.
        explain_end: Says how the data process ended, for the error.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        name: str = "loader",
        on_copy: Callable[[int], None],
        explain_end: Callable[[], str],
    ) -> None:
        self._channel = channel
        channel.set_patience(_STALL_SECONDS)
        self._name = name
        self._on_copy = on_copy
        self._explain_end = explain_end
        self._arena: Optional[Arena] = None
        self._layouts: Dict[int, Layout] = {}
        self._returns: Optional[SlotReturns] = None
        self._failure: Optional[str] = None
        self._waiting: Deque[Message] = deque()
        self._extents: Dict[int, Tuple[int, bool]] = {}

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
        while True:
            message = self._waiting.popleft() if self._waiting else self._next_message()
            if message.kind != Kind.EXTENT:
                return message

    def extent(self, stream: int, samples: int) -> Tuple[int, bool]:
        """Wait until it is known whether a pass has ``samples`` samples.

        Micro-batches that come meanwhile are kept for ``next_batch``; those of passes before are
        given back.

        Args:
            stream: Number of the pass.
            samples: Asked about.

        Returns:
            How many samples there are for certain, and whether there are no more.

        Raises:
            DataError: If the pipeline failed or the data process is gone.
        """
        for before in [number for number in self._extents if number < stream]:
            del self._extents[before]
        known, has_ended = self._extents.get(stream, (-1, False))
        while known < samples and not has_ended:
            message = self._next_message()
            if message.kind == Kind.BATCH and message.stream < stream:
                self.drop(message)
            elif message.kind == Kind.BATCH:
                self._waiting.append(message)
            known, has_ended = self._extents.get(stream, (-1, False))
        return known, has_ended

    def _next_message(self) -> Message:
        while self._failure is None:
            message, descriptor = self._receive()
            if message is None:
                self._failure = self._explain_end()
            elif message.kind == Kind.ERROR:
                self._failure = str(message.payload)
            elif message.kind == Kind.LAYOUT:
                self._layouts[message.layout] = Layout.from_payload(message.payload)
            elif message.kind == Kind.ARENA and descriptor is not None:
                self._map(message, descriptor)
            else:
                if message.kind == Kind.EXTENT:
                    self._extents[message.stream] = (message.rows, bool(message.slot))
                return message
        raise DataError(self._failure)

    def take(self, batch: Message) -> Delivery:
        """Return the micro-batch behind a message, as the caller's own arrays.

        Raises:
            DataError: If it lies in memory that was never sent.
        """
        arena, returns, layout = self._arena, self._returns, self._layouts[batch.layout]
        if arena is None or returns is None or arena.generation != batch.generation:
            raise DataError("the data process named memory that it has not sent")
        base = arena.slot(batch.slot, layout.num_bytes)
        if returns.is_last:
            base = _private(base)
            self._on_copy(base.nbytes)
            returns.give_back(batch.slot)
        else:
            returns.watch(base, batch.slot)
        ids, *leaves = layout.views(base)
        return Delivery(ids.copy(), tree_of(layout.form, leaves))

    def drop(self, batch: Message) -> None:
        """Give a slot back unread."""
        if self._returns is not None:
            self._returns.give_back(batch.slot)

    def flush(self) -> None:
        """Tell the data process of every slot that is free."""
        if self._returns is not None:
            self._returns.flush()

    def close(self) -> None:
        """Close the connection; arrays that were handed out stay valid."""
        self._channel.close()

    def _map(self, message: Message, descriptor: int) -> None:
        self._arena = Arena(message.rows, message.slot, message.generation, descriptor)
        self._arena.close()
        self._returns = SlotReturns(self._channel, message.generation, message.slot)

    def _receive(self) -> Tuple[Optional[Message], Optional[int]]:
        """Wait for a message, and say so when nothing comes for long; there is no time limit."""
        try:
            return self._channel.receive(wait=False)
        except BlockingIOError:
            self.flush()
        waits = 0
        while True:
            message = self._receive_or_none()
            if message is not None:
                return message
            waits += 1
            _log.warning(
                "%s: no batch for %.0f s; the data process is still at it, or stuck",
                self._name,
                waits * _STALL_SECONDS,
            )

    def _receive_or_none(self) -> Optional[Tuple[Optional[Message], Optional[int]]]:
        try:
            return self._channel.receive()
        except BlockingIOError:
            return None


def _private(base: np.ndarray) -> np.ndarray:
    """Copy to memory that starts on a 64-byte line."""
    room = np.empty(len(base) + 64, dtype=np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + len(base)]
    np.copyto(copy, base)
    return copy

"""The data process's end of the ring to one rank."""

from __future__ import annotations

from contextlib import suppress
from typing import Dict, List, Optional, Tuple

import numpy as np

from unified_ipu.data.arena import Arena
from unified_ipu.data.layout import Layout
from unified_ipu.data.messages import Channel, Kind, Message
from unified_ipu.data.producer import Chunk

_MIN_SLOTS = 3  # one in use, one just released, one being written
_FEW_SLOTS, _FEW_BYTES = 8, 64 << 20
_MANY_SLOTS, _MANY_BYTES = 32, 8 << 20  # small batches: more of them, for fewer wake-ups


class RingWriter:
    """Slots for the micro-batches of one rank; a slot is free until written, then until released.

    Args:
        channel: To the rank.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.wanted_stream = -1
        self._arena: Optional[Arena] = None
        self._free: List[int] = []
        self._layouts: Dict[Tuple[int, object], Tuple[int, Layout]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether the next micro-batch can be written without waiting for the rank."""
        return self._arena is None or bool(self._free)

    def release(self, mask: int, generation: int) -> None:
        """Take back slots, one bit each; those of an arena that was replaced are gone already."""
        if self._arena is None or generation != self._arena.generation:
            return
        for slot in range(mask.bit_length()):
            if mask >> slot & 1:
                self._free.append(slot)  # the last one freed is used next: its pages are warm

    def reserve(self, chunk: Chunk, rows: int) -> Tuple[int, int, List[np.ndarray]]:
        """Return a free slot, the number of its layout, and its arrays, ``[rows, ...]`` each.

        A layout that no slot can hold makes a new arena; the rank learns of both.

        Args:
            chunk: What the rows look like.
            rows: Of the micro-batch.
        """
        known = self._layouts.get((rows, chunk.key))
        if known is None:
            known = self._announce(chunk, rows)
        number, layout = known
        arena = self._arena
        if arena is None or layout.num_bytes > arena.slot_bytes:
            arena = self._replace_arena(layout.num_bytes)
        slot = self._free.pop()
        return slot, number, layout.views(arena.slot(slot, layout.num_bytes))

    def publish(self, slot: int, layout: int, stream: int, ordinal: int, rows: int) -> None:
        """Tell the rank that a micro-batch lies in ``slot``."""
        generation = 0 if self._arena is None else self._arena.generation
        self.channel.send(Message(Kind.BATCH, slot, generation, layout, stream, ordinal, rows))

    def tell(self, message: Message) -> None:
        """Send a message that a rank which is gone need not hear."""
        with suppress(OSError):
            self.channel.send(message)

    def close(self) -> None:
        """Let go of memory and connection."""
        if self._arena is not None:
            self._arena.close()
        self.channel.close()

    def _announce(self, chunk: Chunk, rows: int) -> Tuple[int, Layout]:
        number = len(self._layouts)
        layout = Layout.of(
            [array.dtype.str for array in chunk.arrays],
            [(rows, *array.shape[1:]) for array in chunk.arrays],
            chunk.form,
        )
        self._layouts[rows, chunk.key] = (number, layout)
        self.channel.send(Message(Kind.LAYOUT, layout=number, payload=layout.to_payload()))
        return number, layout

    def _replace_arena(self, slot_bytes: int) -> Arena:
        generation = 0
        if self._arena is not None:
            generation = self._arena.generation + 1
            self._arena.close()
        slots = _num_slots(slot_bytes)
        arena = self._arena = Arena(slot_bytes, slots, generation)
        self._free = list(range(slots - 1, -1, -1))
        message = Message(Kind.ARENA, slot=slots, generation=generation, rows=slot_bytes)
        self.channel.send(message, arena.descriptor)
        arena.close()
        return arena


def _num_slots(slot_bytes: int) -> int:
    few = min(_FEW_SLOTS, _FEW_BYTES // slot_bytes)
    many = min(_MANY_SLOTS, _MANY_BYTES // slot_bytes)
    return max(_MIN_SLOTS, few, many)

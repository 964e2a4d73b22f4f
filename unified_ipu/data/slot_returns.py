"""Gives slots back to the data process once nobody looks at them any more."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Deque, Dict

import numpy as np

from unified_ipu.data.messages import Channel, Kind, Message


class SlotReturns:
    """The slots of one arena that a rank holds, and those it has not yet given back.

    Slots go back in bundles, since each message wakes the data process: when a quarter of them is
    free, or when the rank is about to wait. Arrays may die in any thread; nothing here locks.

    Args:
        channel: To the data process.
        generation: Of the arena.
        num_slots: Of the arena, at most 64.
    """

    def __init__(self, channel: Channel, generation: int, num_slots: int) -> None:
        self._channel = channel
        self._generation = generation
        self._num_slots = num_slots
        self._limit = max(1, num_slots // 4)
        self._held: Dict[int, weakref.ref[np.ndarray]] = {}
        self._free: Deque[int] = deque()

    @property
    def is_last(self) -> bool:
        """Whether the rank would hold all slots with one more."""
        return len(self._held) + 1 >= self._num_slots

    def watch(self, base: np.ndarray, slot: int) -> None:
        """Give ``slot`` back when ``base`` and all views of it are gone."""
        self._held[slot] = weakref.ref(base, partial(self._gone, slot))

    def give_back(self, slot: int) -> None:
        """Give a slot back that nobody looks at."""
        self._free.append(slot)
        if len(self._free) >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Send what is not sent yet; silent when the data process is gone."""
        mask = 0
        with suppress(IndexError):  # another thread was faster
            while self._free:
                mask |= 1 << self._free.popleft()
        if not mask:
            return
        with suppress(OSError):  # closed or gone: nobody needs the slots
            self._channel.send(Message(Kind.RELEASE, generation=self._generation, ordinal=mask))

    def _gone(self, slot: int, _: object) -> None:
        self._held.pop(slot, None)
        self.give_back(slot)

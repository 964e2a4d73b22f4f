"""The slice of every bucket that one rank of a host adds up, and what it found in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, NamedTuple, Sequence, Tuple

import numpy as np

from unified_ipu.comms.arrays import split_evenly
from unified_ipu.comms.layout import LINE_BYTES, Region
from unified_ipu.comms.segment import round_up

if TYPE_CHECKING:
    from unified_ipu.plan import BucketPlan

_TEXT_BYTES = 1024
_NUMBERS = 3  # contributions over all hosts, squared norm, first bad slot or -1


@dataclass(frozen=True)
class Slice:
    """A range of one bucket.

    Args:
        bucket: Index of the bucket.
        start: First element.
        views: The elements of each rank of this host.
    """

    bucket: int
    start: int
    views: Tuple[np.ndarray, ...]


class Finding(NamedTuple):
    """What came out of the sum of some slices.

    Args:
        squared_norm: Of the undivided sum.
        slot: Index of the first slot whose sum is not finite, or -1.
        ranks: Ranks of this host whose contributions to it are not finite.
    """

    squared_norm: float
    slot: int
    ranks: Sequence[int]


def cut_slices(regions: Sequence[Region], index: int, parts: int) -> List[Slice]:
    """Slice ``index`` of ``parts`` of every bucket, from a cache line to another."""
    slices = []
    for bucket, buffer in enumerate(regions[0].buckets):
        per_line = LINE_BYTES // buffer.itemsize
        first, last = split_evenly(-(-buffer.size // per_line), parts)[index]
        start, stop = first * per_line, min(last * per_line, buffer.size)
        views = tuple(region.buckets[bucket][start:stop] for region in regions)
        slices.append(Slice(bucket, start, views))
    return slices


def slots_in(plan: BucketPlan, piece: Slice) -> List[Tuple[int, int, int]]:
    """``(slot index, first, last)`` of the slots in a slice, relative to its start."""
    found = []
    stop = piece.start + piece.views[0].size
    for index, slot in enumerate(plan.slots):
        if slot.bucket != piece.bucket:
            continue
        low = max(slot.offset, piece.start)
        high = min(slot.offset + math.prod(slot.shape), stop)
        if low < high:
            found.append((index, low - piece.start, high - piece.start))
    return found


class Found:
    """What one rank shows the others of its host: the same on every host.

    Args:
        memory: ``[num_bytes]`` uint8.
        header_size: Number of values of a header.
        world_size: Number of ranks of all hosts.
    """

    def __init__(self, memory: np.ndarray, header_size: int, world_size: int) -> None:
        at = 8 * _NUMBERS
        self._numbers = memory[:at].view(np.float64)
        self.header = memory[at : at + 8 * header_size].view(np.float64)
        """``[header_size]`` float64, summed over all ranks."""
        at += 8 * header_size
        self._marks = memory[at : at + world_size]
        self._text = memory[at + world_size : at + world_size + _TEXT_BYTES]

    @staticmethod
    def num_bytes(header_size: int, world_size: int) -> int:
        """Bytes it takes, up to a cache line."""
        return round_up(8 * (_NUMBERS + header_size) + world_size + _TEXT_BYTES, LINE_BYTES)

    def show_headers(self, total: np.ndarray, contributions: int) -> None:
        """Say what the headers of all ranks are together, and how many have gradients."""
        self.header[...] = total
        self._numbers[0] = contributions
        self._text[0] = 0

    def show_problem(self, text: str) -> None:
        """Say why there is no sum of headers."""
        data = text.encode("utf-8", "replace")[: _TEXT_BYTES - 1]
        self._text[: len(data)] = np.frombuffer(data, np.uint8)
        self._text[len(data)] = 0

    def show_sum(self, squared_norm: float, slot: int, ranks: Sequence[int]) -> None:
        """Say what came out of the sum of a slice.

        Args:
            squared_norm: Of the undivided sum.
            slot: The first one that is not finite, or -1.
            ranks: Of all hosts, whose contributions to it are not finite.
        """
        self._numbers[1:] = [squared_norm, slot]
        self._marks.fill(0)
        self._marks[list(ranks)] = 1

    @property
    def contributions(self) -> int:
        """How many ranks have gradients."""
        return int(self._numbers[0])

    @property
    def problem(self) -> str:
        """Why there is no sum of headers, or ""."""
        return self._text.tobytes().partition(b"\0")[0].decode("utf-8", "replace")

    @property
    def squared_norm(self) -> float:
        """Of the undivided sum."""
        return float(self._numbers[1])

    @property
    def slot(self) -> int:
        """The first slot that is not finite, or -1."""
        return int(self._numbers[2])

    @property
    def ranks(self) -> Tuple[int, ...]:
        """Ranks whose contributions to that slot are not finite."""
        return tuple(int(rank) for rank in np.flatnonzero(self._marks))

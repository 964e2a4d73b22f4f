"""Passes whose rows stay in this process: shared with the pipeline's results where they can be."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Protocol, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Copies, CopyReason
from unified_ipu.data.dealing import Pass, Stream
from unified_ipu.data.producer import Chunk, Producer
from unified_ipu.data.schedule import Schedule
from unified_ipu.data.stream_dealing import StreamPass


class Rows(NamedTuple):
    """One micro-batch: its arrays, the ids first, and the tree that the others form."""

    arrays: List[np.ndarray]
    form: Any


class LocalPass(Pass, Protocol):
    """A pass that hands its rows to this process."""

    def take(self, copies: Copies) -> Rows:
        """Return the rows of the current portion, writable; go on to the next."""
        ...

    def extent(self, samples: int) -> Tuple[int, bool]:
        """Read on until it is known whether there are ``samples`` samples; see ``Feed``."""
        ...


class LocalStream(Stream):
    """An index-fed pipeline; see ``dealing.Stream``.

    Args:
        number: Counts the passes.
        epoch: Keys order and seeds.
        start_update: The first update that counts.
        schedule: Who gets what.
        replicas: Those of this process.
        producer: The pipeline; says with ``is_fresh`` that nobody else reads its results.
    """

    def __init__(
        self,
        number: int,
        epoch: int,
        start_update: int,
        *,
        schedule: Schedule,
        replicas: Tuple[int, ...],
        producer: Producer,
    ) -> None:
        super().__init__(
            number,
            epoch,
            start_update,
            schedule=schedule,
            replicas=replicas,
            producer=producer,
        )
        self._is_fresh = bool(getattr(producer, "is_fresh", False))

    def extent(self, samples: int) -> Tuple[int, bool]:  # noqa: ARG002 - of the Protocol
        """Nothing has to be read: the size is known."""
        return 0, True

    def take(self, copies: Copies) -> Rows:
        """See ``LocalPass``."""
        portion = self.portion
        shared = None if portion is None else self._rows.view(portion.span.rows)
        if shared is None:
            return _copied(self, copies)
        self.portion = next(self._portions, None)
        chunk, arrays = shared
        return Rows(_own(arrays, copies, is_fresh=self._is_fresh), chunk.form)


class LocalStreamPass(StreamPass):
    """An iterable; see ``stream_dealing.StreamPass``. What readers return is fresh."""

    def extent(self, samples: int) -> Tuple[int, bool]:
        """See ``Feed``; what was not taken of the window before is left out."""
        known, has_ended = self._known, self._has_ended
        while known < samples and not has_ended:
            while self.portion is not None:
                self.write(None)
            for message in self.look_ahead():
                known = message.rows
            has_ended = self._has_ended
        self._known = known
        return known, has_ended

    _known = -1

    def take(self, copies: Copies) -> Rows:
        """See ``LocalPass``."""
        portion = self.portion
        if portion is None or portion.real < portion.span.rows:
            return _copied(self, copies)
        first = int(portion.row_ids[0])
        start, chunk = self._samples.find(first)
        offset = first - start
        if offset + portion.real > chunk.rows:
            return _copied(self, copies)
        self.portion = next(self._portions, None)
        arrays = [array[offset : offset + portion.real] for array in chunk.arrays]
        return Rows(_own(arrays, copies, is_fresh=True), chunk.form)


class _Target:
    """Stands in for the ring: takes one micro-batch into new arrays."""

    def __init__(self) -> None:
        self.arrays: List[np.ndarray] = []
        self.form: Any = None

    def reserve(self, chunk: Chunk, rows: int) -> Tuple[int, int, List[np.ndarray]]:
        self.form = chunk.form
        self.arrays = [np.empty((rows, *a.shape[1:]), a.dtype) for a in chunk.arrays]
        return 0, 0, self.arrays

    def publish(self, *_: int) -> None:
        pass


def _copied(current: Pass, copies: Copies) -> Rows:
    target: Any = _Target()
    current.write(target)
    copies.add(CopyReason.SPLIT, sum(array.nbytes for array in target.arrays[1:]))
    return Rows(target.arrays, target.form)


def _own(arrays: Sequence[np.ndarray], copies: Copies, *, is_fresh: bool) -> List[np.ndarray]:
    ids, leaves = arrays[0], arrays[1:]
    if not is_fresh:
        copies.add(CopyReason.ALIASED, sum(array.nbytes for array in leaves))
        return [ids, *(np.array(array, order="C") for array in leaves)]
    return [ids, *(as_writable(array) for array in leaves)]


class _Writable:
    """Memory that is nobody else's, under an interface that says so."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array  # keeps the memory alive
        self.__array_interface__ = dict(array.__array_interface__)
        self.__array_interface__["data"] = (array.__array_interface__["data"][0], False)


def as_writable(array: np.ndarray) -> np.ndarray:
    """A writable array over the same memory, which frameworks call read-only out of caution."""
    if array.flags.writeable:
        return array
    if not array.size:
        return np.array(array)
    return np.asarray(_Writable(array))

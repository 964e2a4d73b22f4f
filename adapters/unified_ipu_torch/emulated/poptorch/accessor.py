"""Batches fetched ahead of time into a ring of buffers.

The SDK starts a process; here a thread does it, which needs no pickling. What a script can see is
the same: batches are copied into the ring, and a batch is overwritten once it has been let go,
which is when the next one is asked for.

Source: PopTorch 3.4, ``python/_dataloader.py``, ``python/__init__.py``.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Iterator, List, Optional, Sequence

import torch

from unified_ipu_torch.emulated.poptorch.enums import SharingStrategy
from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.log import logger, note_once
from unified_ipu_torch.emulated.poptorch.structures import flatten, parser_of, rebuild


class _Ring:
    """Buffers that one thread fills and another empties, in turn.

    Args:
        like: The tensors of one batch.
        size: Number of batches that may wait.
    """

    def __init__(self, like: Sequence[torch.Tensor], size: int) -> None:
        self._slots = [[torch.empty_like(tensor) for tensor in like] for _ in range(size)]
        self._rows = [0] * size
        self._room = threading.Condition()
        self._first, self._count = 0, 0
        self._is_held = False
        self._is_over = False
        self.is_stopped = False
        self.error: Optional[BaseException] = None

    @property
    def indices_mem(self) -> List[bool]:
        """Which buffers hold a batch."""
        size = len(self._slots)
        return [(index - self._first) % size < self._count for index in range(size)]

    def put(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Copy a batch in, when there is room.

        Args:
            tensors: Of the shapes of the ring; the last batch may have fewer rows.

        Returns:
            Whether it went in; otherwise the ring was stopped.
        """
        with self._room:
            self._room.wait_for(lambda: self.is_stopped or self._count < len(self._slots))
            if self.is_stopped:
                return False
            index = (self._first + self._count) % len(self._slots)
        rows = len(tensors[0]) if tensors and tensors[0].dim() else 0
        for buffer, tensor in zip(self._slots[index], tensors):
            is_short = buffer.dim() and tensor.dim() and len(tensor) < len(buffer)
            (buffer[: len(tensor)] if is_short else buffer).copy_(tensor)
        with self._room:
            self._rows[index] = rows
            self._count += 1
            self._room.notify_all()
        return True

    def finish(self, error: Optional[BaseException] = None) -> None:
        """No batch follows."""
        with self._room:
            self._is_over, self.error = True, error
            self._room.notify_all()

    def stop(self) -> None:
        """Let the thread that fills end."""
        with self._room:
            self.is_stopped = True
            self._room.notify_all()

    def release(self) -> None:
        """Let the batch go that was taken last."""
        with self._room:
            if self._is_held:
                self._is_held = False
                self._first = (self._first + 1) % len(self._slots)
                self._count -= 1
                self._room.notify_all()

    def take(self) -> Optional[List[torch.Tensor]]:
        """The next batch, or None behind the last."""
        with self._room:
            self._room.wait_for(lambda: self._count > 0 or self._is_over or self.is_stopped)
            if self._count == 0:
                return None
            self._is_held = True
            index = self._first
        rows = self._rows[index]
        return [
            tensor[:rows] if tensor.dim() and rows < len(tensor) else tensor
            for tensor in self._slots[index]
        ]


class _Pass:
    """One pass over the data: its first batch is read at once, the rest in a thread.

    Args:
        iterator: Gives the batches.
        rebatched_size: Put batches of this many rows together.
        drop_last: Leave out the rows behind the last whole batch.
        buffer_size: Number of batches that may wait.

    Raises:
        Error: If there is no batch.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        rebatched_size: Optional[int],
        *,
        drop_last: bool,
        buffer_size: int,
    ) -> None:
        first = next(iterator, None)
        if first is None:
            raise Error("The Dataset is empty")
        self.form = first
        pieces = _pieces(first, iterator)
        if rebatched_size is not None:
            pieces = _rebatched(pieces, rebatched_size, drop_last=drop_last)
        batch = next(pieces, None)
        like = _tensors(first) if batch is None else batch
        self._data_buffers = _Ring(like, buffer_size)
        self._pieces = pieces
        self._thread: Optional[threading.Thread] = None
        self.was_used = False
        if batch is None:
            self._data_buffers.finish()
        else:
            self._data_buffers.put(batch)

    def start(self) -> None:
        """Fetch the rest in the background, if that does not happen already."""
        if self._thread is None:
            arguments = (self._pieces, self._data_buffers)
            self._thread = threading.Thread(
                target=_fill, args=arguments, name="poptorch-data-accessor", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and let go of what it read from."""
        self._data_buffers.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._pieces = iter(())


class AsynchronousDataAccessor:
    """Iterates over a data set or a loader, some batches ahead.

    Args:
        dataset: Gives tensors, or flat tuples, lists or dicts of them.
        buffer_size: Number of batches that may wait.
        miss_sleep_time_in_ms: Without meaning here: nothing polls.
        load_indefinitely: Without meaning here: a new pass is read when it is asked for.
        early_preload: Fill all buffers before the first iteration starts.
        sharing_strategy: Without meaning here: there is no other process.
        rebatched_size: Put batches of this many rows together.

    Raises:
        Error: If the loader has an accessor of its own, or the first batch cannot be read.
        AssertionError: If a short last batch is wanted that does not fit the buffers.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,  # noqa: ARG002  # see above
        load_indefinitely: bool = True,  # noqa: ARG002  # see above
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: Optional[int] = None,
    ) -> None:
        self._passes: List[_Pass] = []
        self._finalizer = weakref.finalize(self, _stop_all, self._passes)
        _check_loader(dataset, rebatched_size)
        require(
            rebatched_size is None or rebatched_size > 1,
            "rebatched_size must be None or greater than 1",
        )
        if sharing_strategy != SharingStrategy.ForkServer:
            note_once("sharing_strategy", "a thread reads ahead, not a process")
        # A loader that owns this accessor must be free to go: it is no cycle of references then.
        self._owner = weakref.ref(dataset) if hasattr(dataset, "fresh_iterator") else None
        self._dataset = None if getattr(dataset, "_owns_accessor", False) else dataset
        self._buffer_size = buffer_size
        self.rebatched_size = rebatched_size
        self._drop_last = getattr(dataset, "rebatched_drop_last", True)
        try:
            self._new_pass()
        except Exception as error:
            logger.exception("AsynchronousDataAccessor: the first batch could not be read")
            raise Error(
                "AsynchronousDataAccessor worker thread failed to start (Check above for details)"
            ) from error
        if early_preload:
            self._alive().start()

    @property
    def _worker(self) -> Optional[_Pass]:
        return self._passes[-1] if self._passes else None

    def terminate(self) -> None:
        """Stop reading ahead; nothing can be iterated after that."""
        _stop_all(self._passes)

    def __len__(self) -> int:
        source = self._source()
        length = len(source)
        if self.rebatched_size and not getattr(source, "_owns_accessor", False):
            length = length * source.batch_size // self.rebatched_size
        return length

    def __iter__(self) -> AsynchronousDataAccessor:
        worker = self._alive()
        if worker.was_used:
            _stop_all(self._passes)
            worker = self._new_pass()
        worker.start()
        return self

    def __next__(self) -> Any:
        worker = self._alive()
        ring = worker._data_buffers
        ring.release()
        worker.was_used = True
        tensors = ring.take()
        if tensors is None:
            if ring.error is not None:
                raise AssertionError("An error occurred in the data fetcher") from ring.error
            raise StopIteration
        return _like(worker.form, tensors)

    def _alive(self) -> _Pass:
        worker = self._worker
        if worker is None:
            raise AssertionError("the accessor was terminated; make a new one")
        return worker

    def _source(self) -> Any:
        return self._dataset if self._owner is None else self._owner()

    def _new_pass(self) -> _Pass:
        source = self._source()
        iterator = iter(source) if self._owner is None else source.fresh_iterator()
        found = _Pass(
            iterator,
            self.rebatched_size,
            drop_last=self._drop_last,
            buffer_size=self._buffer_size,
        )
        self._passes.append(found)
        return found


def _stop_all(passes: List[_Pass]) -> None:
    while passes:
        passes.pop().stop()


def _check_loader(dataset: Any, rebatched_size: Optional[int]) -> None:
    if getattr(dataset, "_accessor", None) is not None:
        raise Error(
            "The DataLoader already uses an AsynchronousDataAccessor internally. Either use the "
            "existing one or set mode='poptorch.DataLoaderMode.Sync' in the DataLoader."
        )
    is_loader = hasattr(dataset, "combinedBatchSize") and not dataset._has_batch_sampler
    if is_loader and not dataset.drop_last and rebatched_size is None:
        require(
            dataset.combinedBatchSize in {None, 1},
            "The 'drop_last=False' option from the DataLoader only works if 'rebatched_size' is "
            "specified too.",
        )


def _fill(pieces: Iterator[List[torch.Tensor]], ring: _Ring) -> None:
    try:
        for batch in pieces:
            if not ring.put(batch):
                return
    except BaseException as error:  # noqa: BLE001  # raised where the batches are read
        ring.finish(error)
    else:
        ring.finish()


def _pieces(first: Any, rest: Iterator[Any]) -> Iterator[List[torch.Tensor]]:
    yield _tensors(first)
    for item in rest:
        yield _tensors(item)


def _tensors(item: Any) -> List[torch.Tensor]:
    if isinstance(item, torch.Tensor) or parser_of(item) is not None:
        return flatten(item)
    found = list(item.values()) if isinstance(item, dict) else list(item)
    for index, tensor in enumerate(found):
        require(
            isinstance(tensor, torch.Tensor),
            f"Tensor at index {index} is not a torch tensor ({type(tensor)}). "
            "AsynchronousDataAccessor expects data to be organised as a flat 1D container of "
            "tensors.",
        )
    return found


def _rebatched(
    pieces: Iterator[List[torch.Tensor]], size: int, *, drop_last: bool
) -> Iterator[List[torch.Tensor]]:
    """Cut and join pieces to batches of ``size`` rows."""
    waiting: List[List[torch.Tensor]] = []
    rows = 0
    for piece in pieces:
        waiting.append(piece)
        rows += len(piece[0])
        while rows >= size:
            joined = [torch.cat(tensors) for tensors in zip(*waiting)]
            yield [tensor[:size] for tensor in joined]
            waiting, rows = [[tensor[size:] for tensor in joined]], rows - size
    if rows and not drop_last:
        yield [torch.cat(tensors) for tensors in zip(*waiting)]


def _like(form: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(form, torch.Tensor):
        return tensors[0]
    if isinstance(form, dict):
        return dict(zip(form, tensors))
    if parser_of(form) is not None:
        return rebuild(form, tensors)
    return tensors

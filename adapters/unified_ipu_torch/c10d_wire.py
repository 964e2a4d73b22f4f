"""The wire over one gloo process group; messages between two ranks go through the store."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from unified_ipu.comms import Waiting
from unified_ipu_torch.c10d_watch import WORLD, Watch

_FOREVER = timedelta(days=365)  # Watch ends waits; gloo's time-outs break its connections
_THREADS = 2
_NUM_KEPT = 4
_PAUSE_SECONDS = 5e-5
_NUM_MESSAGES = 2  # to one rank, before it has to take one
_ADDED = ("float32", "float64", "int32", "int64")  # by gloo, with the same bits on all ranks
_c10d: Any = dist  # some names are public but for the type checker


class GlooWire:
    """``Wire`` over gloo. Making one is collective over its members.

    Args:
        watch: Of the group.
        store: With a prefix of its own for this group.
    """

    def __init__(self, watch: Watch, store: Any) -> None:
        self._watch = watch
        self._store = store
        self._posted: Dict[int, int] = {}
        self._taken: Dict[int, int] = {}
        self.members: Tuple[int, ...] = watch.members
        self.rank = self.members.index(watch.board.rank)
        self._group = _build_group(store, self.rank, len(self.members), watch.board.own_address)
        # Gloo's threads let tensors go a moment after the wait has ended, for which they may need
        # Python's lock; the last ones live longer than the group, whose end waits for the threads.
        self._kept: Deque[List[torch.Tensor]] = deque(maxlen=_NUM_KEPT)

    @property
    def store(self) -> Any:
        """The store of this group, for another process group beside gloo's."""
        return self._store

    def gather(self, data: np.ndarray, waiting: Waiting) -> List[np.ndarray]:
        """Bytes of all ranks, by rank."""
        table = np.empty((len(self.members), data.size), np.uint8)
        if data.size:
            outputs, mine = [torch.from_numpy(row) for row in table], _tensor(data)
            work = self._group.allgather([outputs], [mine])
            self._finish(work, [*outputs, mine], waiting)
        return list(table)

    def broadcast(self, data: np.ndarray, root: int, waiting: Waiting) -> None:
        """Overwrite with the root's bytes."""
        options = dist.BroadcastOptions()
        options.rootRank = root
        tensor = torch.from_numpy(data)
        self._finish(self._group.broadcast([tensor], options), [tensor], waiting)

    def poll(self, work: Any, waiting: Waiting) -> None:
        """Wait for work of another process group, which may be on a device."""
        self._watch.finish(_Polled(work), waiting)

    def adds(self, dtype: np.dtype) -> bool:
        """Whether gloo adds that dtype up."""
        return dtype.name in _ADDED

    def add(self, array: np.ndarray, waiting: Waiting) -> None:
        """Sum over ranks, in the order of gloo's ring: each piece is added up once."""
        tensor = torch.from_numpy(array)
        self._finish(self._group.allreduce([tensor]), [tensor], waiting)

    def shift(self, data: np.ndarray, into: np.ndarray, waiting: Waiting) -> None:
        """Hand flat data to the next rank and take the previous one's.

        Not by gloo's send and receive: a wait for those that ends breaks all connections.
        """
        size = len(self.members)
        sent, taken = [0] * size, [0] * size
        sent[(self.rank + 1) % size] = data.size
        taken[(self.rank - 1) % size] = into.size
        source, target = _tensor(data), torch.from_numpy(into)
        work = self._group.alltoall_base(target, source, taken, sent)
        self._finish(work, [source, target], waiting)

    def entered(self, rank: int) -> Tuple[int, str]:
        """The collective of this group that a rank was last seen waiting in, 0 for none."""
        return self._watch.board.arrived(self._watch.group, self.members[rank])

    def look_also(self, look: Callable[[Sequence[int]], None]) -> None:
        """Have ``look`` called while a wait is long."""
        self._watch.look_also(look)

    def post(self, data: np.ndarray, to: int, waiting: Waiting) -> None:
        """Put bytes into the store, at most two messages ahead of who takes them."""
        number = self._posted[to] = self._posted.get(to, 0) + 1
        if number > _NUM_MESSAGES:
            self._watch.await_key(
                self._key("taken", self.rank, to, number - _NUM_MESSAGES), to, waiting
            )
            self._watch.board.pull(self._key("taken", self.rank, to, number - _NUM_MESSAGES))
        self._watch.board.put(self._key("mail", self.rank, to, number), data.tobytes())

    def take(self, source: int, waiting: Waiting) -> np.ndarray:
        """The next bytes that one rank has put there."""
        number = self._taken[source] = self._taken.get(source, 0) + 1
        key = self._key("mail", source, self.rank, number)
        self._watch.await_key(key, source, waiting)
        data = self._watch.board.pull(key)
        self._watch.board.put(self._key("taken", source, self.rank, number), b"1")
        return np.frombuffer(data, np.uint8)

    def split(self, members: Sequence[int], name: str) -> GlooWire:
        """The wire of some ranks of this group."""
        mine = self._watch
        group = f"{mine.group}/{name}"
        watch = Watch(
            mine.board,
            group,
            [self.members[rank] for rank in members],
            timeout_seconds=mine.timeout_seconds,
            stall_report_seconds=mine.stall_report_seconds,
        )
        return GlooWire(watch, _c10d.PrefixStore(name, self._store))

    def announce(self, phase: Optional[str]) -> None:
        """Tell the others of a phase."""
        self._watch.board.announce(phase)

    def abort(self, kind: str, text: str) -> None:
        """Give up for all ranks of the world."""
        self._watch.board.abort(kind, text)

    def check(self) -> None:
        """Raise if this rank knows that anyone has given up."""
        self._watch.check()

    def close(self) -> None:
        """Leave."""
        board, group = self._watch.board, self._watch.group
        board.leave(group)
        if group == WORLD:
            board.linger(group)
        self._group = None
        self._kept.clear()

    def _finish(self, work: Any, tensors: List[torch.Tensor], waiting: Waiting) -> None:
        self._kept.append(tensors)
        try:
            self._watch.finish(work, waiting)
        except BaseException:
            # Gloo waits on for ranks that do not come, and so would whoever frees the group: two
            # ranks for each other, for ever. It is never freed; the end of the process ends it. Nor
            # are the tensors: gloo's threads would let numpy's memory go while Python shuts down,
            # ask for its lock, and be ended by "terminate called without an active exception".
            for held in [self._group, work, *(each for kept in self._kept for each in kept)]:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
            raise

    def _key(self, kind: str, source: int, to: int, number: int) -> str:
        return f"{kind}/{self._watch.group}/{source}/{to}/{number}"


class _Polled:
    """Work whose own wait does not end when its time is over, as that of devices."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.is_completed = work.is_completed

    def wait(self, timeout: Optional[timedelta] = None) -> None:
        """Return when the work is done.

        Raises:
            RuntimeError: If it is not done in time.
        """
        end = None if timeout is None else time.monotonic() + timeout.total_seconds()
        while not self._work.is_completed():
            if end is not None and time.monotonic() > end:
                raise RuntimeError("not done in time")
            time.sleep(_PAUSE_SECONDS)
        self._work.wait()  # raises what went wrong; orders the device's stream


def _build_group(store: Any, rank: int, size: int, address: str) -> Any:
    if not address:
        # Chooses the interface by GLOO_SOCKET_IFNAME, else by the host's name.
        return dist.ProcessGroupGloo(store, rank, size, _FOREVER)
    options = _c10d.ProcessGroupGloo._Options()  # noqa: SLF001  # the only name it has had in all versions
    # SLF001: torch has no public way to set what gloo listens on, waits for and computes with.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
    options._timeout = _FOREVER  # noqa: SLF001
    options._threads = _THREADS  # noqa: SLF001
    return dist.ProcessGroupGloo(store, rank, size, options)


def _tensor(data: np.ndarray) -> torch.Tensor:
    # torch warns about memory it must not write to, though it only reads here.
    return torch.from_numpy(data if data.flags.writeable else data.copy())

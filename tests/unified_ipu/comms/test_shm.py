"""Pipes, shared memory, locks and counters of the shared-memory transport."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, List

import numpy as np
import pytest
from hypothesis import given, strategies as st

from unified_ipu.comms import Communicator, local_group, segment as segment_module
from unified_ipu.comms.futex import build_lock, take_lock
from unified_ipu.comms.segment import Segment
from unified_ipu.comms.watch import is_reached, wrapped
from unified_ipu.errors import CollectiveError, PeerLostError
from unified_ipu.testing.threads import RanksFailedError, run_ranks


@pytest.mark.parametrize("size", [1, 2])
def test_it_is_a_communicator(size):
    for communicator in local_group(size):
        assert isinstance(communicator, Communicator)
        communicator.close()


def test_a_rank_may_leave_after_sending():
    def run(_, communicator):
        if communicator.rank == 0:
            communicator.send(np.arange(3), to=1)
            communicator.close()
            return None
        time.sleep(0.3)
        return communicator.recv(source=0).tolist()

    assert run_ranks(2, run) == [None, [0, 1, 2]]


@pytest.mark.parametrize("size", [1, 2])
def test_sending_to_oneself_or_nobody_is_refused(size):
    communicator = local_group(size)[0]
    for peer in (0, -1, size):
        with pytest.raises(CollectiveError, match=f"rank {peer} is not another rank"):
            communicator.send(np.zeros(1), to=peer)
        with pytest.raises(CollectiveError, match=f"rank {peer} is not another rank"):
            communicator.recv(source=peer)


def test_l4_a_message_from_who_has_left_never_comes():
    def run(_, communicator):
        if communicator.rank == 0:
            communicator.close()
            return
        with pytest.raises(PeerLostError, match="rank 0 is lost: it has left"):
            communicator.recv(source=0)

    run_ranks(2, run)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 100_001])
def test_shared_memory_is_zero_and_seen_by_all(size, nbytes):
    def run(_, communicator):
        regions = communicator.allocate_shared(nbytes, "test")
        assert [region.shape for region in regions] == [(nbytes,)] * size
        assert not any(region.any() for region in regions)
        communicator.barrier()
        regions[communicator.rank].fill(communicator.rank + 1)
        communicator.barrier()
        return [set(region.tolist()) for region in regions]

    expected = [{rank + 1} if nbytes else set() for rank in range(size)]
    assert run_ranks(size, run) == [expected] * size


def test_l4_memory_that_is_not_there_is_an_error_on_all_ranks():
    def run(_, communicator):
        with pytest.raises(CollectiveError, match="MiB are available; use fewer ranks"):
            communicator.allocate_shared(2**50, "everything")
        return communicator.all_reduce(np.arange(2)).tolist()

    assert run_ranks(2, run) == [[0, 2]] * 2


def test_a_full_memory_is_an_error_and_leaves_no_descriptor(monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # a count
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(CollectiveError, match="could not be had"):
        Segment.create(4096, "x")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  # a count


def test_a_segment_cannot_be_shrunk_or_grown_by_a_peer():
    segment = Segment.create(8192, "sealed")
    for length in (0, 4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, length)
    segment.close_fd()
    segment.close_fd()


def test_the_smallest_limit_on_memory_counts(monkeypatch):
    lines = {
        "/proc/meminfo": ["MemTotal: 9 kB", "MemAvailable: 8000 kB"],
        "/proc/self/cgroup": ["0::/job"],
        "/sys/fs/cgroup/job/memory.max": ["1000000"],
        "/sys/fs/cgroup/job/memory.current": ["400000"],
        "/sys/fs/cgroup/job/memory.stat": ["anon 7", "inactive_file 50000"],
    }
    monkeypatch.setattr(segment_module, "_lines", lambda path: lines.get(path, []))
    assert segment_module.available_bytes() == 650_000
    lines["/sys/fs/cgroup/job/memory.max"] = ["max"]
    assert segment_module.available_bytes() == 8_192_000
    lines.clear()
    assert segment_module.available_bytes() is None


def test_a_lock_is_taken_once():
    segment = Segment.create(4096, "lock")
    segment.close_fd()
    build_lock(segment.address)
    assert [take_lock(segment.address) for _ in range(3)] == [True, False, False]


def test_who_dies_while_writing_the_cause_does_not_stop_others(monkeypatch):
    communicator: Any = local_group(2)[0]
    board = communicator._watch.board
    monkeypatch.setattr("unified_ipu.comms.board._LOCK_PATIENCE_SECONDS", 0.05)
    assert not board._is_late()  # someone takes the lock and is never heard of again
    communicator.abort("second")
    with pytest.raises(PeerLostError, match="rank 0 gave up: second"):
        communicator.barrier()


def test_a_segment_of_a_process_that_is_gone_is_refused():
    with pytest.raises(CollectiveError, match="same user and the same pid namespace"):
        Segment.open(2**22 + 1, 3, 4096)


@given(st.integers(0, 2**33), st.integers(-3, 3))
def test_a_flag_that_wraps_around_is_compared_right(count, ahead):
    assert is_reached(wrapped(count + ahead), wrapped(count)) == (ahead >= 0)


def test_barriers_go_on_when_their_counter_wraps_around():
    communicators: List[Any] = local_group(3)
    for communicator in communicators:
        lanes = communicator._group.lanes
        lanes._next = wrapped(2**31 - 5)
        lanes._my_flag.post(wrapped(2**31 - 6))

    totals: List[List[int]] = [[], [], []]

    def run(rank):
        for _ in range(20):
            totals[rank].append(int(communicators[rank].all_reduce(np.int64(rank))))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [[3] * 20] * 3


def test_a_note_costs_little_and_is_cut():
    communicator: Any = local_group(2)[0]
    communicator.note("n" * 100_000)
    board = communicator._watch.board
    assert board.read_note(0) == "n" * 510
    communicator.note("")
    assert board.read_note(0) == ""


def test_a_failed_rank_does_not_leave_the_others_waiting():
    def run(_, communicator):
        if communicator.rank == 1:
            raise ValueError("no")
        communicator.barrier()

    with pytest.raises(RanksFailedError) as caught:
        run_ranks(3, run)
    assert isinstance(caught.value.errors[0], PeerLostError)

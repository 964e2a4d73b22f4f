"""Ranks as real processes over c10d: meeting, dying, on one host and on two."""

from __future__ import annotations

import time

import pytest

from tests.adapters.unified_ipu_torch.c10d_processes import (
    await_line,
    finish,
    start_all,
    start_on_two_hosts,
)

pytestmark = [pytest.mark.timeout(100), pytest.mark.slow]


@pytest.mark.case("O-P5")
def test_p5_two_jobs_at_once_and_sessions_in_a_row_never_meet():
    stale = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # from an earlier run
    processes = [*start_all(2, "add_up_five_times", **stale), *start_all(2, "add_up_five_times")]
    expected = "".join(f"[{1.0 + 2 * number}]\n" for number in range(5))
    line = "[[0, 2], 3.0, 'C10dCommunicator']\n"
    assert finish(processes) == [(line + expected, 0)] * 4


@pytest.mark.parametrize("killed", [2])
def test_l4_a_killed_rank_is_named_within_seconds_on_all_ranks(killed):
    processes = start_all(3, "hang", killed)
    await_line(processes[killed], "hanging")
    time.sleep(0.5)  # the others wait by now
    started = time.monotonic()
    processes[killed].kill()  # and stays a zombie until it is waited for
    others = [process for rank, process in enumerate(processes) if rank != killed]
    outputs = [process.communicate(timeout=40)[0] for process in others]
    assert time.monotonic() - started < 10
    assert [process.returncode for process in others] == [3, 3]
    finish(processes)
    for output in outputs:
        assert f"PeerLostError: rank {killed} is lost: its process" in output
        assert "has ended while others wait in all_reduce sum float32 (4,) 'grads'" in output


def test_l4_4_a_rank_killed_on_one_host_is_named_on_all():
    processes = start_on_two_hosts("sum_and_hang", 3)
    for process in processes:
        await_line(process, "[1000.0, 1.0]")
    await_line(processes[3], "hanging")
    time.sleep(0.5)  # the others wait by now: one in its host's memory, two between the hosts
    started = time.monotonic()
    processes[3].kill()
    said = [next(line for line in process.stdout if "Error" in line) for process in processes[:3]]
    assert time.monotonic() - started < 10
    statuses = [status for _, status in finish(processes)]
    assert statuses[:3] == [3, 3, 3]
    for line in said:
        assert line.startswith("PeerLostError: rank 3 is lost: its process")
        assert "has ended while others wait in reduce gradients" in line


def test_l4_a_killed_holder_of_the_store_ends_the_others():
    processes = start_all(3, "hang", 0)
    await_line(processes[0], "hanging")
    time.sleep(0.5)
    started = time.monotonic()
    processes[0].kill()
    outputs = [process.communicate(timeout=40)[0] for process in processes[1:]]
    assert time.monotonic() - started < 10
    finish(processes)
    assert all("PeerLostError: " in output for output in outputs)
    assert all("rank 0" in output for output in outputs)


def test_l4_a_rank_that_leaves_while_others_wait_is_named():
    (output, status), _ = finish(start_all(2, "leave"))
    assert status == 3
    assert "PeerLostError: rank 1 is lost: it has left (closed its communicator)" in output


def test_l4_a_late_process_ends_the_job_and_is_reported_before():
    processes = start_all(2, "hang", 1, timeout=3)
    output = processes[0].communicate(timeout=40)[0]
    processes[1].kill()
    finish(processes)
    assert "waiting 1" in output
    assert "for rank 1: it never entered collective 2, its last was 1, barrier 'start'" in output
    assert "CollectiveTimeoutError: rank 1 did not come to all_reduce sum float32 (4,)" in output

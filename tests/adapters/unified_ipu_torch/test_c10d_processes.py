"""Ranks as real processes over c10d: meeting, dying, several hosts' worth of launchers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from unified_ipu.world import World, world_variables

HERE = Path(__file__).parent
SCRIPT = HERE / "c10d_rank.py"
TRAIN = HERE / "c10d_train.py"

pytestmark = [pytest.mark.timeout(100), pytest.mark.slow]


def environment(**changes):
    kept = {key: value for key, value in os.environ.items() if "UNIFIED_IPU" not in key}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def start(command, variables):
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**variables),
    )


def start_all(size, what, argument="", *, timeout=30.0, **variables):
    job = uuid.uuid4().hex
    return [
        start(
            [SCRIPT, what, timeout, argument],
            {**world_variables(World(rank, rank, size, size, job=job)), **variables},
        )
        for rank in range(size)
    ]


def start_on_two_hosts(what, argument):
    """Four ranks as two agents of torchrun start them, two a host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "4"}
    return [
        start(
            [SCRIPT, what, 30.0, argument],
            {
                **places,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % 2),
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": str(rank // 2),
            },
        )
        for rank in range(4)
    ]


def finish(processes):
    """Output and exit status of each; whatever happens, none is left."""
    try:
        return [(process.communicate(timeout=60)[0], process.returncode) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def await_line(process, line):
    for text in process.stdout:
        if text.strip() == line:
            return
    raise AssertionError(f"{line!r} was never printed")


def test_processes_of_one_host_meet_without_a_port():
    line = "[[0, 2, 4], 6.0, 'C10dCommunicator']\n"
    assert finish(start_all(3, "add_up")) == [(line, 0)] * 3


@pytest.mark.case("O-P5")
def test_p5_two_jobs_at_once_and_sessions_in_a_row_never_meet():
    stale = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # from an earlier run
    processes = [*start_all(2, "add_up_five_times", **stale), *start_all(2, "add_up_five_times")]
    expected = "".join(f"[{1.0 + 2 * number}]\n" for number in range(5))
    assert finish(processes) == [(expected, 0)] * 4


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


@pytest.mark.timeout(200)  # four ranks, two agents, and one more process alone
def test_two_agents_of_torchrun_train_as_one_process_does():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agent = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 2]
    agent += ["--master-addr", "127.0.0.1", "--master-port", port]
    train = [TRAIN, "--set", "comms.algorithm=hierarchical"]
    agents = [start([*agent, "--node-rank", node, *train], {}) for node in range(2)]
    (first, status), (_, other) = finish(agents)
    assert (status, other) == (0, 0), first
    found = [line for line in first.splitlines() if line.startswith("RESULT")]
    assert len(found) == 1, first
    (alone, status) = finish([start([TRAIN], {})])[0]
    assert status == 0, alone
    expected = next(line for line in alone.splitlines() if line.startswith("RESULT")).split()
    words = found[0].split()
    assert words[1:3] == ["hierarchical", "4"]
    assert words[3:-1] == expected[3:-1] == ["250", "of", "250", "samples,", "each", "once"]
    assert float(words[-1]) == pytest.approx(float(expected[-1]), rel=1e-4)


def test_c10d_is_chosen_explicitly_on_one_host():
    command = ["-m", "unified_ipu.cli.main", "run", "--set", "mesh.data=2"]
    output, status = finish([start([*command, "--set", "comms.transport=c10d", TRAIN], {})])[0]
    assert status == 0, output
    assert "RESULT direct 2 250 of 250 samples, each once" in output

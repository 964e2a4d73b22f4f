"""Ranks as real processes: meeting, dying, stopping, leaving nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from hashlib import blake2b
from pathlib import Path

import pytest

from unified_ipu.comms import connect
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError

SCRIPT = Path(__file__).with_name("rank_process.py")

pytestmark = pytest.mark.timeout(60)


def start(rank, size, job, what, argument="1", *, timeout=30, report=30, environment=None):
    command = [sys.executable, SCRIPT, rank, size, job, what, argument, timeout, report]
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=None if environment is None else {**os.environ, **environment},
    )


def start_all(size, what, argument="1", **settings):
    job = uuid.uuid4().hex
    return [start(rank, size, job, what, argument, **settings) for rank in range(size)]


def finish(processes):
    """Output and exit status of each; whatever happens, none is left."""
    try:
        return [(process.communicate(timeout=40)[0], process.returncode) for process in processes]
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


@pytest.mark.case("O-P5")
def test_p5_two_jobs_at_once_never_meet():
    # Two jobs at a time, five times over; job k adds up k + 1 on both ranks.
    stale = {"MASTER_PORT": "29500"}  # from an earlier run
    names = [(uuid.uuid4().hex, first) for first in (1, 6)]
    processes = [
        start(rank, 2, name, "add_up_five_times", f"{name}:{first}", environment=stale)
        for name, first in names
        for rank in (0, 1)
    ]
    outputs = [(text.split(), status) for text, status in finish(processes)]
    for two, (_, first) in zip((outputs[:2], outputs[2:]), names):
        assert two == [([f"[{2.0 * (first + number)}]" for number in range(5)], 0)] * 2


def test_nothing_is_left_in_shared_memory_or_sockets():
    def names():
        unix = Path("/proc/net/unix").read_text(encoding="utf-8")
        sockets = [line for line in unix.splitlines() if "@unified_ipu" in line]
        return set(os.listdir("/dev/shm")), sockets  # noqa: PTH208  # names only

    files, _ = names()
    processes = start_all(2, "hang", 30)
    await_line(processes[1], "hanging")
    for process in processes:
        process.kill()
    finish(processes)
    left = {name for name in names()[0] - files if "unified" in name}
    assert left == set()


def test_l4_a_killed_rank_is_named_within_seconds_on_all_ranks():
    processes = start_all(3, "hang", 30)
    await_line(processes[2], "hanging")
    time.sleep(0.2)  # the others wait by now
    killed = time.monotonic()
    processes[2].kill()  # and stays a zombie until it is waited for
    outputs = [process.communicate(timeout=40)[0] for process in processes[:2]]
    assert time.monotonic() - killed < 10
    finish(processes)
    for output in outputs:
        assert output.startswith("PeerLostError: rank 2 is lost: its process")
        assert "has ended while others wait in all_reduce sum float32 (4,) 'grads'" in output
        assert 'its last note: "sleeping on purpose"' in output


def test_l4_a_stopped_rank_is_reported_as_stopped():
    processes = start_all(2, "hang", 1, report=0.3)
    await_line(processes[1], "hanging")
    processes[1].send_signal(signal.SIGSTOP)
    for line in processes[0].stdout:
        if " in all_reduce " in line:  # a slow start is reported before it
            break
    line += processes[0].stdout.readline()
    processes[1].send_signal(signal.SIGCONT)
    (_, status), (other, _) = finish(processes)
    assert "for rank 1" in line
    assert "state T (stopped)" in line
    assert "no stack: the process is stopped" in line
    assert (status, other) == (0, "done\n")


def test_l4_the_stack_of_a_stuck_rank_is_in_the_report():
    processes = start_all(2, "hang", 1.5, report=0.3)
    (report, status), (_, other_status) = finish(processes)
    assert (status, other_status) == (0, 0)
    assert "it never entered collective 3, its last was 2, barrier 'start'" in report
    assert 'last note "sleeping on purpose"' in report
    assert "rank_process.py" in report
    assert "in sleep_long" in report


def test_l4_a_late_process_ends_the_job_on_all_ranks():
    outputs = finish(start_all(2, "hang", 6, timeout=4))
    for output, status in outputs:
        assert status == 3
        assert "CollectiveTimeoutError: rank 1 did not come to all_reduce" in output


@pytest.mark.parametrize(("how", "said"), [("close", "it has left"), ("exit", "has ended")])
def test_l4_a_rank_that_goes_while_others_wait_is_named(how, said):
    (output, status), _ = finish(start_all(2, "leave_early", how))
    assert status == 3
    assert f"PeerLostError: rank 1 is lost: {'its process' if how == 'exit' else said}" in output
    assert said in output


def test_an_interrupt_ends_a_wait_and_the_job():
    processes = start_all(2, "interrupted")
    await_line(processes[0], "waiting")
    time.sleep(0.2)
    processes[0].send_signal(signal.SIGINT)
    (first, status), (second, other) = finish(processes)
    assert (first, status) == ("interrupted\n", 0)
    assert second.strip() == "PeerLostError: rank 0 gave up: KeyboardInterrupt"
    assert other == 3


def test_a_world_of_another_size_is_refused_on_both_sides():
    job = uuid.uuid4().hex
    outputs = finish([start(0, 2, job, "add_up"), start(1, 3, job, "add_up")])
    for output, status in outputs:
        assert status == 3
        assert "rank 1 expects a world of 3 ranks, rank 0 one of 2" in output


def test_one_rank_twice_is_refused_before_the_world_is_complete():
    job = uuid.uuid4().hex
    outputs = finish([start(rank, 3, job, "add_up") for rank in (0, 1, 1)])
    assert all("CollectiveError: two processes say they are rank 1" in text for text, _ in outputs)


def test_one_rank_twice_is_refused_after_the_world_is_complete():
    job = uuid.uuid4().hex
    processes = [start(rank, 2, job, "hang", 3) for rank in (0, 1)]
    await_line(processes[1], "hanging")
    with pytest.raises(CollectiveError, match="complete without this process"):
        connect(rank=1, size=2, job=job, timeout_seconds=10)
    with pytest.raises(CollectiveError, match="another process is rank 0"):
        connect(rank=0, size=2, job=job, timeout_seconds=0.1)
    assert [status for _, status in finish(processes)] == [0, 0]


def test_a_rank_that_starts_late_is_waited_for_and_logged():
    job = uuid.uuid4().hex
    first = start(0, 2, job, "add_up", report=0.2)
    for line in first.stdout:
        if line.startswith("waiting for rank 1 of 2 to start"):
            break
    outputs = finish([first, start(1, 2, job, "add_up")])
    assert [output.splitlines()[-1] for output, _ in outputs] == ["[2.0]", "[2.0]"]


@pytest.mark.parametrize(
    ("rank", "said"), [(0, "rank 1 did not join"), (1, "rank 0 did not start")]
)
def test_a_rank_that_never_comes_is_a_timeout(rank, said):
    with pytest.raises(CollectiveTimeoutError, match=said):
        connect(rank=rank, size=2, job=uuid.uuid4().hex, timeout_seconds=0.3)


def test_a_rank_that_dies_while_joining_is_named():
    job = uuid.uuid4().hex
    hello = (
        "import socket, sys, json, os, hashlib\n"
        "name = hashlib.blake2b(sys.argv[1].encode(), digest_size=16).hexdigest()\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "while s.connect_ex('\\0unified_ipu/%d/%s' % (os.getuid(), name)): pass\n"
        "s.send(json.dumps(dict(version=1, rank=1, size=3, pid=os.getpid())).encode())\n"
    )
    first = start(0, 3, job, "add_up")
    subprocess.run([sys.executable, "-c", hello, job], check=True, timeout=30)
    ((output, status),) = finish([first])
    assert status == 3
    assert output.startswith("PeerLostError: rank 1 (process ")


def test_a_silent_stranger_does_not_disturb_the_meeting():
    job = uuid.uuid4().hex
    first = start(0, 2, job, "add_up")
    name = blake2b(job.encode(), digest_size=16).hexdigest()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        while stranger.connect_ex(f"\0unified_ipu/{os.getuid()}/{name}"):
            time.sleep(0.01)
    assert [status for _, status in finish([first, start(1, 2, job, "add_up")])] == [0, 0]


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank, size):
    with pytest.raises(CollectiveError, match="is not in a world of"):
        connect(rank=rank, size=size, job="x")


def test_a_world_of_several_ranks_needs_a_job():
    with pytest.raises(CollectiveError, match="needs a job id"):
        connect(rank=0, size=2, job="")


def test_another_processor_is_refused(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CollectiveError, match=r'set comms\.transport = "c10d"'):
        connect(rank=0, size=2, job="x")
    assert connect(rank=0, size=1, job="").size == 1

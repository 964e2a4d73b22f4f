"""One rank fails, a signal comes, the launcher dies: everything ends, and the cause is named."""

from __future__ import annotations

import signal
import time

import pytest

pytestmark = pytest.mark.timeout(60)

# Each rank has a child of its own, as a data process is, and says when it is there.
BEGIN = """
import ctypes, os, signal, subprocess, sys, time
rank = int(os.environ["UNIFIED_IPU_RANK"])
subprocess.Popen(["sleep", "99"])
def ready():
    open(f"ready-{rank}", "w").close()
    while not all(os.path.exists(f"ready-{other}") for other in range(3)):
        time.sleep(0.01)
"""
READY = ("ready-0", "ready-1", "ready-2")


@pytest.mark.case("O-P3")
@pytest.mark.parametrize(
    ("statement", "status", "message"),
    [
        ("raise ValueError('bad sample 7')", 1, "rank 1 of 3 failed: ValueError: bad sample 7"),
        ("os._exit(3)", 3, "rank 1 of 3 exited with status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 1 of 3 was ended by SIGKILL"),
        ("ctypes.string_at(0)", 139, "rank 1 of 3 was ended by SIGSEGV"),
    ],
)
def test_one_rank_fails_and_the_rest_end_with_its_status(runs, statement, status, message):
    script = runs.script(
        f"{BEGIN}\nready()\nif rank == 1:\n    {statement}\nelse:\n    time.sleep(99)\n"
    )
    found, _, err = runs.run(script, ranks=3)
    assert found == status
    assert f"unified-ipu: {message}" in err
    assert err.count("rank 1 of 3") == 1


@pytest.mark.case("O-P3")
def test_the_traceback_shows_the_script_and_nothing_of_ours(runs):
    text = (
        f"{BEGIN}\nready()\ndef step():\n    raise ValueError('bad sample 7')\n"
        "if rank == 1:\n    step()\ntime.sleep(99)\n"
    )
    _, _, err = runs.run(runs.script(text), ranks=3)
    assert "in step" in err
    assert err.count("Traceback") == 1
    assert "child.py" not in err
    assert "runpy" not in err


@pytest.mark.case("O-P3")
def test_ranks_that_ignore_everything_are_gone_within_10_seconds(runs):
    ignoring = "for number in (2, 15): signal.signal(number, signal.SIG_IGN)"
    script = runs.script(
        f"{BEGIN}\n{ignoring}\nready()\nif rank == 1:\n    raise ValueError('bad sample 7')\n"
        "while True:\n    time.sleep(9)\n"
    )
    started = time.monotonic()
    status, _, err = runs.run(script, ranks=3)
    assert time.monotonic() - started < 15
    assert status == 1
    assert "rank 1 of 3 failed: ValueError: bad sample 7" in err


def test_the_first_cause_is_named_not_who_lost_it(runs):
    script = runs.script(
        f"{BEGIN}\nfrom unified_ipu.errors import PeerLostError\nready()\n"
        "if rank == 1:\n    time.sleep(0.3)\n    raise ValueError('bad sample 7')\n"
        "try:\n    raise PeerLostError('rank 1 left')\n"
        "finally:\n    [][0] if rank == 2 else None\n"
    )
    status, _, err = runs.run(script, ranks=3)
    assert status == 1
    assert "unified-ipu: rank 1 of 3 failed: ValueError: bad sample 7" in err


def test_a_lost_peer_without_another_cause_is_reported(runs):
    script = runs.script(
        f"{BEGIN}\nfrom unified_ipu.errors import PeerLostError\nready()\n"
        "if rank == 2:\n    raise PeerLostError('rank 1 left')\ntime.sleep(99)\n"
    )
    status, _, err = runs.run(script, ranks=3)
    assert status == 1
    assert "unified-ipu: rank 2 of 3 failed: PeerLostError: rank 1 left" in err


def test_a_rank_that_has_failed_may_finish_its_exit(runs):
    script = runs.script(
        f"{BEGIN}\nimport atexit\nready()\nif rank == 1:\n"
        "    atexit.register(lambda: (time.sleep(0.5), print('saved')))\n"
        "    raise ValueError('bad sample 7')\ntime.sleep(99)\n"
    )
    status, out, _ = runs.run(script, ranks=3)
    assert (status, out) == (1, "[rank 1] saved\n")


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_is_passed_on_and_everything_ends(runs, signum, status):
    # Deaf from then on: on a busy machine the launcher's next signal comes while it still tells.
    handling = (
        "def tell(*_):\n    for number in (15, 1): signal.signal(number, signal.SIG_IGN)\n"
        "    sys.exit('told')\nfor number in (15, 1): signal.signal(number, tell)"
    )
    script = runs.script(
        f"{BEGIN}\n{handling}\ntry:\n    ready()\n    time.sleep(99)\n"
        "except KeyboardInterrupt:\n    print('told', file=sys.stderr)\n    raise\n"
    )
    process = runs.start(script, ranks=3)
    runs.wait_for(*READY)
    process.send_signal(signum)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert runs.left() == []
    assert err.count("told") == 3
    assert f"unified-ipu: ended by {signal.Signals(signum).name}" in err
    assert "Traceback" not in err


def test_a_second_interrupt_ends_at_once(runs):
    ignoring = "for number in (2, 15): signal.signal(number, signal.SIG_IGN)"
    script = runs.script(f"{BEGIN}\n{ignoring}\nready()\nwhile True:\n    time.sleep(9)\n")
    process = runs.start(script, ranks=3)
    runs.wait_for(*READY)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert time.monotonic() - started < 4  # without it: 5 s to SIGTERM, 3 more to SIGKILL
    assert runs.left() == []


@pytest.mark.parametrize(
    "statement",
    [
        "time.sleep(99)",
        # Native code that keeps the interpreter's lock: no thread of Python runs.
        "ctypes.PyDLL(None).sleep(99)",
    ],
)
def test_when_the_launcher_is_killed_everything_ends(runs, statement):
    script = runs.script(f"{BEGIN}\nready()\n{statement}\n")
    process = runs.start(script, ranks=3)
    runs.wait_for(*READY)
    process.kill()
    process.wait()
    assert runs.left(seconds=10) == []

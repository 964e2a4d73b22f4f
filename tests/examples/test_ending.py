"""The example ended roughly: quickly, with the cause named, and with nothing left.

Other endings are held where less has to start: ``unified_ipu/launch/test_failures.py`` kills the
launcher, ``unified_ipu/data/test_process_feed.py`` the data process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_mixed"
SECONDS_TO_START = 90.0
SECONDS_TO_END = 10.0


class Run:
    """``unified-ipu run`` of the example on two replicas, for longer than any test."""

    def __init__(self, folder):
        command = [sys.executable, "-m", "unified_ipu.cli.main", "run", "--set", "mesh.data=2"]
        command += [str(EXAMPLE / "train.py"), "--epochs", "1000"]
        self.mark = f"UNIFIED_IPU_TEST_RUN={folder.name}-{os.getpid()}"
        name, value = self.mark.split("=")
        self.output = folder / "output.txt"
        with self.output.open("wb") as file:
            self.launcher = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, name: value},
                start_new_session=True,
            )

    def processes(self):
        """Return command lines by pid of all that carry this run's mark."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = (folder / "environ").read_bytes().split(b"\0")
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                if self.mark.encode() in environment and command:
                    found[int(folder.name)] = (command, environment)
        return found

    def rank(self, rank):
        """Return the pid of a rank."""
        wanted = f"UNIFIED_IPU_RANK={rank}".encode()
        (pid,) = [
            pid
            for pid, (command, environment) in self.processes().items()
            if wanted in environment and "unified_ipu.data.worker" not in command
        ]
        return pid

    def wait_for_epoch(self):
        """Wait until an epoch has been trained, so that everything is up."""
        end = time.monotonic() + SECONDS_TO_START
        while b"epoch 1/1000:" not in self.output.read_bytes():
            assert self.launcher.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.1)

    def wait_for_end(self):
        """Return the exit status; nothing of the run may be alive after it."""
        status = self.launcher.wait(timeout=SECONDS_TO_END)
        self.wait_until_gone()
        return status

    def wait_until_gone(self):
        end = time.monotonic() + SECONDS_TO_END
        while self.processes():
            assert time.monotonic() < end, self.processes()
            time.sleep(0.05)

    def close(self):
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.launcher.wait(timeout=SECONDS_TO_END)


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.case("O-P3")
def test_l4_a_killed_rank_ends_the_job_and_is_named(run):
    run.wait_for_epoch()
    os.kill(run.rank(1), signal.SIGKILL)
    assert run.wait_for_end() == 128 + signal.SIGKILL
    assert "rank 1" in run.output.read_text()
    assert "SIGKILL" in run.output.read_text()


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_l4_an_interrupt_ends_everything_with_130(run):
    run.wait_for_epoch()
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait_for_end() == 130

"""Runs of the command line on small scripts, and what they leave behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MARK = "LAUNCH_TEST_MARK"
# As the installed command does it: the working directory is not on the path.
COMMAND = """
import sys
del sys.path[0]
from unified_ipu.cli.main import main
sys.exit(main())
"""


class Runs:
    """Starts `unified-ipu run` and finds every process that came from it."""

    def __init__(self, folder):
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self.started = []

    def script(self, text, name="train.py"):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self, script, *args, ranks=None, options=(), environ=None, **popen):
        command = [sys.executable, "-c", COMMAND, "run", *options]
        if ranks is not None:
            command += ["--set", f"mesh.data={ranks}"]
        process = subprocess.Popen(
            [*command, script, *args],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "cwd": self.folder,
                "env": {**os.environ, MARK: self.mark, **(environ or {})},
                **popen,
            },
        )
        self.started.append(process)
        return process

    def run(self, script, *args, timeout=30, **kwargs):
        """Run to the end; status, stdout, stderr. Nothing may be left by then."""
        process = self.start(script, *args, **kwargs)
        out, err = process.communicate(timeout=timeout)
        assert self.left() == []
        return process.returncode, out, err

    def left(self, seconds=0.0):
        """Living processes of ours after at most `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            found = list(self._living())
            if not found or time.monotonic() >= deadline:
                return found
            time.sleep(0.02)

    def wait_for(self, *names, seconds=20):
        """Wait until the ranks have made these files."""
        deadline = time.monotonic() + seconds
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline, f"no {names}"
            time.sleep(0.01)

    def close(self):
        for pid in self._living():
            os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _living(self):
        wanted = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ = (folder / "environ").read_bytes()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if wanted in environ and state not in "ZX":
                yield int(folder.name)


@pytest.fixture
def runs(tmp_path):
    one = Runs(tmp_path)
    yield one
    one.close()

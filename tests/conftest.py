"""What every test gets: a check that it leaks nothing, and the pool of warm ranks."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
from hypothesis import HealthCheck, settings

GRACE_SECONDS = 2.0
# Set once by a framework when it is imported; no test can take them back.
SET_BY_FRAMEWORKS = ("TF_", "TF2_", "KMP_", "TORCHINDUCTOR_", "PYTEST_CURRENT_TEST", "TPU_")
# Ranks of the warm pool outlive tests on purpose.
POOL_WORKER = b"unified_ipu.testing.pool_worker"

settings.register_profile(
    "repository",
    deadline=None,  # cores are shared: a slow example is no fault
    max_examples=100 if sys.version_info >= (3, 9) else 30,  # arithmetic is that of the main Python
    derandomize=True,  # a red run must be red again
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repository")

# Told apart from other runs of the same tests on this machine.
RUN = f"unified_ipu-{os.getpid()}"
os.environ["PYTEST_RUN"] = RUN

_starts: List[str] = []
_judged = [0]  # how many of them belong to tests that are over


def _note_start(event: str, _arguments: Tuple[Any, ...]) -> None:
    if event in {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}:
        _starts.append(event)


sys.addaudithook(_note_start)


def _processes_of(test: str) -> Dict[int, str]:
    """Return the living processes that ``test`` started, by their inherited environment."""
    marks = (b"PYTEST_CURRENT_TEST=" + test.encode(), b"PYTEST_RUN=" + RUN.encode() + b"\0")
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        is_ours = all(mark in environment for mark in marks)
        if is_ours and command and POOL_WORKER not in command:
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def _environment() -> Dict[str, str]:
    return {
        key: value for key, value in os.environ.items() if not key.startswith(SET_BY_FRAMEWORKS)
    }


def _new_threads(before: Set[threading.Thread]) -> List[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        # tqdm keeps one daemon thread for all bars of a process.
        if thread not in before and type(thread).__name__ != "TMonitor"
    ]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Keep torch to one thread here, as in the warm ranks.

    Tensors of tests are tiny, and threads that wait for each other on shared cores took a third of
    the CPU time of such tests.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def leaks_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves environment variables, threads or processes behind."""
    # pytest writes the variable as "<node id> (<phase>)", with nulls replaced.
    test = f"{request.node.nodeid} (".replace("\x00", "(null)")
    environment = _environment()
    threads = set(threading.enumerate())
    # Fixtures of a module or the session were set up before this one, and may live on.
    kept = set(_processes_of(test)) if len(_starts) > _judged[0] else set()
    starts = len(_starts)
    yield
    assert _environment() == environment, "the test changed environment variables"
    end = time.monotonic() + GRACE_SECONDS
    while True:
        left = _new_threads(threads)
        processes = _processes_of(test) if len(_starts) > starts else {}
        processes = {pid: command for pid, command in processes.items() if pid not in kept}
        if not left and not processes:
            _judged[0] = len(_starts)
            return
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    for pid in processes:
        os.kill(pid, 9)
    pytest.fail(f"the test left behind: threads {left}, processes {processes}")

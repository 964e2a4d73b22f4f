"""Warm ranks for tests: processes that have imported the framework once and serve many tests."""

from __future__ import annotations

import os
import pickle
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, final

import pytest

from unified_ipu.errors import LaunchError
from unified_ipu.launch import THREAD_VARIABLES, end_groups, write_all
from unified_ipu.testing.pool_worker import HEAD, STACKS
from unified_ipu.world import World, current_environment

# Not "-m": the package imports the module, and would warn of that in each worker's output.
WORKER = "import sys; from unified_ipu.testing.pool_worker import main; main(sys.argv[1:])"
READY_SECONDS = 120.0  # importing frameworks on a busy machine
PEERS_SECONDS = 5.0  # for the others, once one rank has failed
SHOWN_OUTPUT = 6000  # characters of a failed worker's output


@final
class WarmPool:
    """Long-lived ranks; started when first needed, replaced after a failure.

    Args:
        size: Most ranks of a run.
        preload: Modules that each worker imports before anything, where they are installed.
    """

    def __init__(self, size: int = 4, preload: Sequence[str] = ("torch",)) -> None:
        self._preload = tuple(preload)
        self._workers: List[Optional[_Worker]] = [None] * size

    def run(
        self, function: Callable[..., Any], size: int = 2, timeout: float = 60.0, **kwargs: Any
    ) -> List[Any]:
        """Call ``function(world, **kwargs)`` on ``size`` ranks at once.

        Args:
            function: At the top level of a test file, or a static method of a class there.
            size: World size.
            timeout: For the call, in seconds; starting workers does not count.
            kwargs: Sent pickled, as is the result.

        Returns:
            What each rank returned, by rank.

        Raises:
            LaunchError: If a rank raised, died or took too long; with all their tracebacks.
        """
        workers = self._warm(size)
        job = secrets.token_hex(8) if size > 1 else ""
        for rank, worker in enumerate(workers):
            world = World(rank, rank, size, size, launcher="unified-ipu", job=job)
            worker.ask(_request(function, world, kwargs))
        answers = _collect(workers, timeout)
        problems = [
            f"--- rank {rank} of {size}\n{answer.problem}"
            for rank, answer in enumerate(answers)
            if answer.problem
        ]
        if problems:
            # State after a failure is unknown: the next run gets new ones.
            self._end(range(size))
            name = getattr(function, "__qualname__", repr(function))
            raise LaunchError(f"{name} failed\n" + "\n".join(problems))
        return [pickle.loads(answer.body) for answer in answers]  # noqa: S301  # our own workers

    def close(self) -> None:
        """End all workers."""
        self._end(range(len(self._workers)))

    def __enter__(self) -> WarmPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _warm(self, size: int) -> List[_Worker]:
        if size > len(self._workers):
            raise LaunchError(
                f"size={size} is more than the pool's {len(self._workers)}; give WarmPool a larger "
                "size"
            )
        started = [index for index in range(size) if self._workers[index] is None]
        for index in started:
            self._workers[index] = _Worker(self._preload)
        workers = [worker for worker in self._workers[:size] if worker is not None]
        failed = [answer for answer in _collect(workers, READY_SECONDS) if answer.problem]
        if failed:
            self._end(range(size))
            raise LaunchError(f"a warm rank did not start\n{failed[0].problem}")
        return workers

    def _end(self, indices: Sequence[int]) -> None:
        workers = [self._workers[index] for index in indices]
        end_groups([worker.pid for worker in workers if worker is not None], grace_seconds=0.0)
        for index, worker in zip(indices, workers):
            if worker is not None:
                worker.close()
            self._workers[index] = None


class _Answer:
    def __init__(self, *, body: bytes = b"", problem: str = "") -> None:
        self.body = body
        self.problem = problem


class _Worker:
    """One process; an answer is outstanding from its start until it is ready, and after ``ask``."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
        lifeline, self._lifeline = os.pipe()
        requests, self._requests = os.pipe()
        self.answers, answers = os.pipe()
        handed = (lifeline, requests, answers)
        environ = {**current_environment(), **dict.fromkeys(THREAD_VARIABLES, "1")}
        environ.pop("PYTEST_CURRENT_TEST", None)  # it serves many
        self._popen = subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, handed), *preload],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=handed,
            start_new_session=True,
        )
        for descriptor in handed:
            os.close(descriptor)
        self._buffer = bytearray()
        self.is_busy = True

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ask(self, request: bytes) -> None:
        self.is_busy = True
        with suppress(BrokenPipeError):  # it died: the closed answer pipe says so
            write_all(self._requests, HEAD.pack(len(request)) + request)

    def read(self) -> Optional[_Answer]:
        """An answer if it is complete now; the pipe must be readable."""
        chunk = os.read(self.answers, 1 << 20)
        if not chunk:
            self.is_busy = False
            status = self._popen.wait()
            return _Answer(problem=f"it died with status {status}\n{self.output()}")
        self._buffer += chunk
        if len(self._buffer) < HEAD.size:
            return None
        end = HEAD.size + HEAD.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        is_well, body = pickle.loads(bytes(self._buffer[HEAD.size : end]))  # noqa: S301
        del self._buffer[:end]
        self.is_busy = False
        if is_well:
            return _Answer(body=body)
        return _Answer(problem=f"{body.decode()}{self.output()}")

    def give_up(self, seconds: float) -> _Answer:
        """Ask for the stacks of its threads; it is killed later."""
        self.is_busy = False
        os.kill(self.pid, signal.SIGCONT)
        os.kill(self.pid, STACKS)
        time.sleep(0.3)
        return _Answer(problem=f"no answer after {seconds:.0f} s\n{self.output()}")

    def output(self) -> str:
        """The last it has written to stdout and stderr."""
        size = os.fstat(self._output.fileno()).st_size
        start = max(0, size - SHOWN_OUTPUT)
        text = os.pread(self._output.fileno(), size - start, start).decode(errors="replace")
        return f"output:\n{text}" if text else ""

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for descriptor in (self._lifeline, self._requests, self.answers):
            os.close(descriptor)
        self._output.close()


def _request(function: Callable[..., Any], world: World, kwargs: Dict[str, Any]) -> bytes:
    return pickle.dumps(
        {
            "file": str(Path(function.__code__.co_filename).resolve()),
            "module": function.__module__,
            "name": function.__qualname__,
            "path": [entry for entry in sys.path if entry],
            "world": world,
            "kwargs": pickle.dumps(kwargs),
        }
    )


def _collect(workers: Sequence[_Worker], seconds: float) -> List[_Answer]:
    """One answer a worker that owes one, an empty one for the others."""
    answers = [_Answer() for _ in workers]
    start = time.monotonic()
    deadline = start + seconds
    while True:
        waiting = {worker.answers: index for index, worker in enumerate(workers) if worker.is_busy}
        if not waiting:
            return answers
        patience = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select(list(waiting), [], [], patience)
        for descriptor in readable:
            index = waiting[descriptor]
            answer = workers[index].read()
            if answer is not None:
                answers[index] = answer
                if answer.problem:
                    deadline = min(deadline, time.monotonic() + PEERS_SECONDS)
        if not readable:
            for index in waiting.values():
                answers[index] = workers[index].give_up(time.monotonic() - start)


@pytest.fixture(scope="session")
def warm_pool() -> Iterator[WarmPool]:
    """Warm ranks for the whole test session; none is started before the first use."""
    with WarmPool() as pool:
        yield pool

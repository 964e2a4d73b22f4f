"""One rank as its launcher holds it: process, lifeline, report pipe and output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from unified_ipu.errors import LaunchError
from unified_ipu.launch.failure import FAILURE, Failure, decode_failure, read_frames
from unified_ipu.launch.group import signal_group
from unified_ipu.launch.labels import Pump

Event = Tuple[str, int]  # ("report" | "end", rank) or ("signal", number)

_ROOT = str(Path(__file__).resolve().parents[2])

# Not `-m`: that would put the working directory first on the path, and a json.py lying there would
# be imported by us. An empty first entry is what `-c` adds. An interrupt before the user's code
# runs ends the rank without a word.
_BOOTSTRAP = f"""\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
if {_ROOT!r} not in sys.path:
    sys.path.append({_ROOT!r})
import signal
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
from unified_ipu.launch.child import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Output:
    """Where a rank's output goes.

    Args:
        stdout: Takes whole lines; None: the rank has the launcher's own stdout.
        stderr: Likewise.
        label: Goes in front of each line.
    """

    stdout: Optional[Callable[[bytes], None]] = None
    stderr: Optional[Callable[[bytes], None]] = None
    label: str = ""


class RankProcess:
    """A rank that leads a process group of its own, so that all it starts ends with it.

    Args:
        rank: Index in the world.
        python: Interpreter.
        task: Arguments for ``launch/child.py``: mode, then what the mode needs.
        environ: Its whole environment.
        output: Where its lines go.
        events: Gets ``("report", rank)`` and ``("end", rank)``.
        payload: A descriptor that it inherits under the same number, or None.
        cpus: Hardware threads that it is bound to; empty leaves it free.

    Raises:
        LaunchError: If the process cannot be started.
    """

    def __init__(
        self,
        rank: int,
        *,
        python: str,
        task: Sequence[str],
        environ: Mapping[str, str],
        output: Output,
        events: SimpleQueue[Event],
        payload: Optional[int] = None,
        cpus: Tuple[int, ...] = (),
    ) -> None:
        self.rank = rank
        self.failure: Optional[Failure] = None
        self.result: Optional[bytes] = None
        self.status: Optional[int] = None
        self._events = events
        lifeline, self._lifeline = os.pipe()
        self._report, report = os.pipe()
        inherited = [lifeline, report] + ([] if payload is None else [payload])
        try:
            self._popen = subprocess.Popen(
                [python, "-c", _bind(cpus) + _BOOTSTRAP, str(lifeline), str(report), *task],
                env=dict(environ),
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=None if output.stdout is None else subprocess.PIPE,
                stderr=None if output.stderr is None else subprocess.PIPE,
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._lifeline)
            os.close(self._report)
            raise LaunchError(f"rank {rank} could not be started with {python}: {error}") from error
        finally:
            os.close(lifeline)
            os.close(report)
        self._reader = threading.Thread(target=self._read_reports, daemon=True)
        self._threads: List[threading.Thread] = [
            self._reader,
            threading.Thread(target=self._wait, daemon=True),
            *self._pumps(output),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Process id, and id of the group, valid until ``close``."""
        return self._popen.pid

    def send(self, signum: int) -> None:
        """Signal the rank alone, if it still runs."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def send_group(self, signum: int) -> None:
        """Signal the rank and whatever it started."""
        signal_group(self.pid, signum)

    def end_of_reports(self) -> None:
        """Wait until all that the ended rank has reported is read."""
        # Something it forked may still hold the pipe: what it wrote is read in no time.
        self._reader.join(timeout=1.0)

    def close(self) -> None:
        """Kill what is left, reap the rank, and let its last lines through."""
        self.send_group(signal.SIGKILL)
        self._popen.wait()
        os.close(self._lifeline)
        for thread in self._threads:
            thread.join(timeout=2.0)

    def _pumps(self, output: Output) -> List[Pump]:
        pairs = ((self._popen.stdout, output.stdout), (self._popen.stderr, output.stderr))
        pumps = []
        for stream, write in pairs:
            if stream is not None and write is not None:
                source = os.dup(stream.fileno())
                stream.close()
                pumps.append(Pump(source, output.label, write))
        return pumps

    def _read_reports(self) -> None:
        for kind, body in read_frames(self._report):
            if kind == FAILURE:
                self.failure = decode_failure(body)
                self._events.put(("report", self.rank))
            else:
                self.result = body
        os.close(self._report)

    def _wait(self) -> None:
        self.status = _await_end(self._popen)
        self._events.put(("end", self.rank))


def _bind(cpus: Tuple[int, ...]) -> str:
    """Lines that bind a process before anything of it counts cores or starts threads."""
    return f"import os\nos.sched_setaffinity(0, {list(cpus)})\n" if cpus else ""


def _await_end(popen: subprocess.Popen[bytes]) -> int:
    """Status as ``Popen`` gives it, without reaping: the zombie keeps the group's id ours."""
    if sys.platform == "linux":
        try:
            ended = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            ended = None  # the user's own SIGCHLD handler was faster
        if ended is not None:
            has_exited = ended.si_code == os.CLD_EXITED
            return ended.si_status if has_exited else -ended.si_status
    return popen.wait()

"""``unified-ipu run``: a script on all ranks of its plan."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Dict, Iterator, Optional, Sequence

from unified_ipu.errors import ConfigError
from unified_ipu.launch.labels import say
from unified_ipu.launch.process import Event
from unified_ipu.launch.start import plan_beside, prepare, start_ranks
from unified_ipu.launch.supervise import Outcome
from unified_ipu.world import Handover

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch_script(
    script: str,
    script_args: Sequence[str] = (),
    *,
    plan_path: Optional[str] = None,
    settings: Sequence[str] = (),
    python: str = sys.executable,
    bind: str = "auto",
) -> int:
    """Run a script as one process a rank, and wait until nothing of it is left.

    Args:
        script: Path of the file.
        script_args: Its own arguments, untouched.
        plan_path: A plan above the ``plan.toml`` beside the script.
        settings: Single settings above both, each ``path=value``.
        python: Interpreter of the ranks.
        bind: Which cores each rank is bound to: ``"auto"``, ``"none"``, ``"core"`` or ``"numa"``.

    Returns:
        Exit status: 0, that of the rank that failed first, or 128 plus the number of a signal.

    Raises:
        ConfigError: If there is no such script, or the ranks cannot be bound so.
        PlanError: If the plan is wrong; nothing was started then.
        LaunchError: If a process cannot be started.
    """
    if not Path(script).is_file():
        raise ConfigError(f"{script}: no such script; give the path of a Python file")
    start = prepare(plan_beside(script), plan_path=plan_path, settings=settings, bind=bind)
    for note in start.notes:
        say(note)
    # The script may change the working directory before it makes its Session.
    plan_path = None if plan_path is None else os.path.abspath(plan_path)  # noqa: PTH100
    events: SimpleQueue[Event] = SimpleQueue()
    with _signals_to(events):
        supervisor, _ = start_ranks(
            start,
            ["script", script, *script_args],
            handover=Handover(plan_path, tuple(settings)),
            events=events,
            python=python,
        )
        outcome = supervisor.wait()
    _explain(outcome, start.num_ranks)
    return outcome.exit_status


@contextmanager
def _signals_to(events: SimpleQueue[Event]) -> Iterator[None]:
    """Hand signals to the supervisor, where they can be handled: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: Any) -> None:  # noqa: ARG001  # the signature is Python's
        events.put(("signal", signum))

    before: Dict[int, Any] = {}
    signum: int
    for signum in _FORWARDED:
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup, or a shell's background job
            before[signum] = signal.signal(signum, handle)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _explain(outcome: Outcome, num_ranks: int) -> None:
    if outcome.stuck:
        say(f"could not end the processes {', '.join(map(str, outcome.stuck))}")
    failure = outcome.failure
    if outcome.signum is not None:
        say(f"ended by {signal.Signals(outcome.signum).name}")
    elif failure is not None and num_ranks > 1:
        say(failure.describe(num_ranks))
    elif failure is not None and failure.traceback:
        # One process: no word of ours between Python and its user.
        print(failure.traceback, end="", file=sys.stderr, flush=True)
    elif failure is not None and failure.status < 0:
        say(f"the script {failure.headline}")

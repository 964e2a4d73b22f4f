"""What a rank runs: its lifeline, then the user's script or function."""

from __future__ import annotations

import faulthandler
import os
import pickle
import runpy
import signal
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Sequence, TextIO

from unified_ipu.errors import LaunchError
from unified_ipu.launch.failure import encode_failure, encode_result, failure_of, write_all
from unified_ipu.launch.lifeline import hold_lifeline
from unified_ipu.world import current_environment, read_world

_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Run the task and report how it went.

    Args:
        arguments: Descriptors of lifeline and report pipe; then ``script``, its path and its own
            arguments, or ``function`` and the descriptor of the payload.

    Returns:
        Exit status.
    """
    lifeline, report = int(arguments[0]), int(arguments[1])
    hold_lifeline(lifeline)
    os.set_inheritable(report, False)
    faulthandler.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        _flush_whole_lines(stream)
    run = run_script if arguments[2] == "script" else _run_payload
    try:
        result = run(*arguments[3:])
        if result is not None:
            write_all(report, encode_result(result))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  # whatever the user's code raises is reported
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
        _report(report, error)
        return 1
    return 0


def run_script(script: str, *arguments: str) -> None:
    """Run a script as ``python script arguments`` would.

    Args:
        script: Path to the file.
        arguments: Its own, untouched.
    """
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def load_function(reference: str) -> Callable[..., Any]:
    """Import ``module:qualname``.

    Args:
        reference: As ``launch`` writes it.

    Raises:
        LaunchError: If it cannot be found here, though the launcher found it.
    """
    import importlib

    module, _, qualname = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise LaunchError(f"{reference} cannot be imported in a rank: {error}") from error
    function: Callable[..., Any] = found
    return function


def _run_payload(descriptor: str) -> bytes:
    number = int(descriptor)
    size = os.fstat(number).st_size
    # All ranks share one file offset: no seeking, no plain read.
    data = b"".join(iter(_Chunks(number, size).read, b""))
    os.close(number)
    payload: Dict[str, Any] = pickle.loads(data)  # noqa: S301  # written by our own launcher
    sys.path[:] = payload["path"]
    sys.argv = [payload["program"]]
    pickler: Any = pickle
    if isinstance(payload["function"], bytes):
        import cloudpickle

        pickler = cloudpickle
        function = pickle.loads(payload["function"])  # noqa: S301  # likewise
    else:
        function = load_function(payload["function"])
    arguments = pickle.loads(payload["arguments"])  # noqa: S301  # likewise
    value = function(*arguments)
    if read_world(current_environment()).rank != 0:
        value = None
    try:
        return bytes(pickler.dumps(value))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LaunchError(
            f"what the function returned, a {type(value).__name__}, cannot be sent back: {error}; "
            "return numbers, strings, arrays, or lists and dicts of them"
        ) from error


class _Chunks:
    """Reads a file by position."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._left = size
        self._offset = 0

    def read(self) -> bytes:
        """The next chunk, empty at the end."""
        chunk = os.pread(self._descriptor, min(self._left, 1 << 24), self._offset)
        self._left -= len(chunk)
        self._offset += len(chunk)
        return chunk


def _report(descriptor: int, error: BaseException) -> None:
    own = (__file__, runpy.__file__, "<frozen runpy>", "<string>")
    rank = read_world(current_environment()).rank
    failure = failure_of(error, rank=rank, hide=own)
    try:
        write_all(descriptor, encode_failure(failure))
    except OSError:
        # The launcher is gone, and this process about to follow it.
        sys.stderr.write(failure.traceback)


def _flush_whole_lines(stream: TextIO) -> None:
    """Let a line leave in one write, so that lines of several ranks do not mix."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True, write_through=False)

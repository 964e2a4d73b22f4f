"""What the data process writes to its standard error: passed on, without start-up chatter."""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from typing import IO, Deque

_KEPT_LINES = 20

# Information lines in the format of absl and glog, and the warning that announces them.
_CHATTER = re.compile(rb"I\d{4} \d\d:\d\d|WARNING: All log messages before absl::InitializeLog")


class WorkerOutput:
    """Reads a pipe to its end in a thread of its own.

    Args:
        pipe: Standard error of the data process.
        is_quiet: Whether information lines of native libraries are left out.
    """

    def __init__(self, pipe: IO[bytes], *, is_quiet: bool) -> None:
        self._pipe = pipe
        self._is_quiet = is_quiet
        self._last: Deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._run, name="unified-ipu-output", daemon=True)
        self._thread.start()

    def last_lines(self) -> str:
        """The end of what was written, once the process has ended."""
        self._thread.join(timeout=1.0)
        return b"".join(tuple(self._last)).decode(errors="replace").rstrip()

    def close(self) -> None:
        """Wait a moment for the last lines."""
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        with self._pipe:
            for line in self._pipe:
                if self._is_quiet and _CHATTER.match(line):
                    continue
                self._last.append(line)
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()

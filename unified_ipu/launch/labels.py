"""Output of several ranks on one stream: whole lines, each with its rank in front."""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import Callable, List

_LONGEST_LINE = 1 << 20  # bytes kept without a line end; memory must stay bounded
# Source: pipe(7): writes of up to PIPE_BUF bytes are atomic. Rank 0 writes to the same pipe.
_ATOMIC = select.PIPE_BUF


class Sink:
    """A descriptor that several threads write whole lines to.

    When nobody reads it any more, everything is dropped: the ranks must not block on us.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._is_broken = False

    def write(self, data: bytes) -> None:
        """Write ``data`` without anything of another thread in between."""
        with self._lock:
            view = memoryview(data)
            while view and not self._is_broken:
                view = view[self._write_some(view) :]

    def _write_some(self, view: memoryview) -> int:
        try:
            return os.write(self._descriptor, view)
        except BlockingIOError:
            select.select([], [self._descriptor], [])
        except OSError:
            self._is_broken = True
        return 0


class Pump(threading.Thread):
    """Moves lines from a rank's pipe to where ``write`` puts them, with a label.

    Args:
        source: Reading end of the rank's stdout or stderr; closed at its end.
        label: Goes in front of each line, e.g. ``"[rank 1] "``; may be empty.
        write: Takes whole lines.
    """

    def __init__(self, source: int, label: str, write: Callable[[bytes], None]) -> None:
        super().__init__(name=f"unified-ipu-output {label}".strip(), daemon=True)
        self._source = source
        self._label = label.encode()
        self._write = write

    def run(self) -> None:
        """Move until the rank and whatever it started have closed the stream."""
        rest = b""
        while True:
            chunk = os.read(self._source, 1 << 16)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines.append(rest)
                rest = b""
            self._emit(lines)
        if rest:
            self._emit([rest])
        os.close(self._source)

    def _emit(self, lines: List[bytes]) -> None:
        # A bar redraws its line after each carriage return: only its last state is worth a line.
        shown = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines)
        block = b""
        for line in shown:
            labelled = self._label + line + b"\n"
            if block and len(block) + len(labelled) > _ATOMIC:
                self._write(block)
                block = b""
            block += labelled
        if block:
            self._write(block)


def say(text: str) -> None:
    """Tell the user something, as the launcher, beside the output of the ranks."""
    print(f"unified-ipu: {text}", file=sys.stderr, flush=True)

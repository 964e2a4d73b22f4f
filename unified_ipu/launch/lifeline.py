"""The lifeline: a pipe by which a child notices that its parent is gone, however it went.

The parent holds the only writing end and never writes. When it ends, kill -9 included, the kernel
closes the pipe. Then the kernel itself sends SIGTERM to the child's process group, so a child that
is stuck in native code under the interpreter's lock ends as well; a thread follows with SIGKILL.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from contextlib import suppress

GRACE_SECONDS = 3.0

# Source: fcntl(2), Linux, asm-generic/fcntl.h: the signal instead of SIGIO; not in Python's fcntl.
_F_SETSIG = 10


def hold_lifeline(descriptor: int) -> None:
    """End this process's whole group when the other end of the pipe is closed.

    The process must lead a group of its own: its launcher would end with it otherwise.

    Args:
        descriptor: Reading end, inherited from the parent.
    """
    os.set_inheritable(descriptor, False)
    # Not every sandbox and system has it; the thread below does the same, later.
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGTERM)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(
        target=_watch, args=(descriptor, os.getpgrp()), name="unified-ipu-lifeline", daemon=True
    ).start()


def _watch(descriptor: int, group: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.killpg(group, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(group, signal.SIGKILL)

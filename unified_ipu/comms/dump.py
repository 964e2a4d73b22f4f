"""The Python stack of another process that is stuck, for the report of a stall.

Each process registers a faulthandler on a real-time signal that writes into a memfd of its own.
The signal kills a process without that handler, so it is sent only to those who published the
descriptor. It ends sleeping system calls early: it explains a hang, it is no heartbeat.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from functools import lru_cache
from pathlib import Path

from unified_ipu.comms.futex import open_pidfd

_SIGNAL_OFFSET = 5  # SIGRTMIN + 5; the first ones belong to the threads library and debuggers
_PATIENCE_SECONDS = 1.0
_LIMIT_BYTES = 65536
_QUIET_SECONDS = 0.02


def dump_signal() -> int:
    """The signal that asks for a stack."""
    return int(signal.SIGRTMIN) + _SIGNAL_OFFSET


def install_dump() -> int:
    """Let other processes ask for this one's stack.

    Returns:
        The descriptor they read it from, or -1: not the main thread, or the signal is taken.
    """
    if threading.current_thread() is not threading.main_thread():
        return -1
    return _register()


@lru_cache(maxsize=None)
def _register() -> int:
    # Once a process and never undone: without the handler a late signal would kill it.
    number = dump_signal()
    if signal.getsignal(number) not in {signal.SIG_DFL, None}:
        return -1
    fd = os.memfd_create("unified_ipu:stack", os.MFD_CLOEXEC)
    faulthandler.register(number, file=fd, all_threads=True, chain=False)
    return fd


def process_state(pid: int) -> str:
    """One letter and word of /proc, e.g. ``T (stopped)``; "" if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return ""
    for line in text.splitlines():
        if line.startswith("State:"):
            return line.partition(":")[2].strip()
    return ""


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    return process_state(pid)[:1] in {"", "Z", "X"}


def read_stack(pid: int, fd: int) -> str:
    """Ask a process for the stacks of its threads.

    Args:
        pid: The process.
        fd: The descriptor it published; -1: it takes no signal.

    Returns:
        The text, or a sentence saying why there is none.
    """
    if fd < 0 or pid == os.getpid():
        return "no stack: that process takes no signal for it"
    if process_state(pid).startswith("T"):
        return "no stack: the process is stopped (SIGSTOP or a debugger)"
    pidfd = open_pidfd(pid)
    if pidfd < 0:
        return "no stack: the process is gone"
    try:
        file = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        os.close(pidfd)
        return f"no stack: {error.strerror}"
    try:
        before = os.fstat(file).st_size
        os.kill(pid, dump_signal())  # the pidfd is open, so the number still is this process
        return _await_text(file, before)
    except OSError as error:
        return f"no stack: {error.strerror}"
    finally:
        os.close(file)
        os.close(pidfd)


def _await_text(file: int, before: int) -> str:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    size = before
    while time.monotonic() < deadline:
        time.sleep(_QUIET_SECONDS)
        now = os.fstat(file).st_size
        if now == size and now > before:
            break
        size = now
    if size == before:
        return "no stack: the process did not answer within a second"
    return os.pread(file, min(size - before, _LIMIT_BYTES), before).decode("utf-8", "replace")

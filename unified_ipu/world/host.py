"""What processes of one host have in common."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def host_name() -> str:
    """A name that is equal for processes that see each other, their loopback and shared memory.

    Containers with process ids or networks of their own are hosts of their own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid")]
    except OSError:  # not Linux
        return socket.gethostname()
    return " ".join([boot, *spaces])

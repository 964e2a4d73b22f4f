"""Which process started this run: the nearest ancestor outside of it."""

from __future__ import annotations

import os
from pathlib import Path


def launcher_token(variable: str) -> str:
    """Name the nearest ancestor that was started without ``variable`` in its environment.

    The launcher puts the variable into what it starts, wrapper scripts between it and a rank
    inherit it, the launcher itself has none. So all ranks on a host find the same process, and
    its start time tells it from a later one with the same id.

    Args:
        variable: Name of an environment variable that the launcher sets for its children.

    Returns:
        Process id and start time in clock ticks, or ``""`` where /proc does not tell.

    Source: proc(5), files ``environ`` and ``stat`` (fields 4 and 22).
    """
    marker = variable.encode() + b"="
    pid = os.getppid()
    try:
        while pid > 0:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            # The name in brackets may hold spaces; the fields are counted from behind it.
            fields = (
                Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            )
            if not any(entry.startswith(marker) for entry in environ.split(b"\0")):
                return f"{pid}.{fields[19]}"
            pid = int(fields[1])
    except (OSError, ValueError, IndexError):
        return ""
    return ""

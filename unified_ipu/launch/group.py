"""A rank's process group: the rank and whatever it started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import List, Sequence


def signal_group(group: int, signum: int) -> None:
    """Send a signal to all of a group; a group without members is no error.

    Args:
        group: Id of the group: the process id of its leader, not yet reaped.
        signum: Number of the signal.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def living_members(groups: Sequence[int]) -> List[int]:
    """Process ids of all members that are no zombies.

    Args:
        groups: Ids of process groups.

    Source: proc(5), ``stat``: fields 3 (state) and 5 (process group) follow the name in brackets.
    """
    wanted = set(groups)
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        state, _, group = fields.rpartition(")")[2].split()[:3]
        if int(group) in wanted and state not in "ZX":
            members.append(int(folder.name))
    return members


def end_groups(groups: Sequence[int], *, grace_seconds: float) -> List[int]:
    """Send SIGTERM, then SIGKILL to what is left after the grace.

    Args:
        groups: Ids of process groups, their leaders not yet reaped.
        grace_seconds: Between the two signals.

    Returns:
        Process ids that even SIGKILL did not end within a second (stuck in the kernel).
    """
    for signum, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 1.0)):
        if not living_members(groups):
            return []
        for group in groups:
            signal_group(group, signum)
        deadline = time.monotonic() + seconds
        while living_members(groups) and time.monotonic() < deadline:
            time.sleep(0.01)
    return living_members(groups)

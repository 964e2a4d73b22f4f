"""How many cores this process may use: affinity, and the quota of its control group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, Optional

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that this process may keep busy, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cgroup_quota(_CGROUP_ROOT, _read(Path("/proc/self/cgroup")))
    return max(1, cores if quota is None else min(cores, int(quota)))


def cgroup_quota(root: Path, membership: str) -> Optional[float]:
    """Cores that the control group allows, or None without a limit.

    The smallest limit of the group and of those above it counts.

    Args:
        root: Where control groups are mounted.
        membership: Content of ``/proc/self/cgroup``.

    Source: kernel documentation, admin-guide/cgroup-v2 (``cpu.max``: quota and period in
    microseconds, or ``max``) and scheduler/sched-bwc (``cpu.cfs_quota_us``, -1 for none).
    """
    quotas = []
    for folder in _folders(root, membership):
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        try:
            quota, period = int(words[0]), int(words[1])
        except (ValueError, IndexError):
            continue
        if quota > 0 and period > 0:
            quotas.append(quota / period)
    return min(quotas) if quotas else None


def _folders(root: Path, membership: str) -> Iterator[Path]:
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            top = root
        elif "cpu" in controllers.split(","):
            top = root / "cpu"
        else:
            continue
        folder = top / name.strip("/")
        yield folder
        for parent in folder.parents:
            if parent == root.parent:
                break
            yield parent


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

"""How many cores this process may use: affinity, hardware threads, quota of its control group."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Optional

from unified_ipu.world.processors import Processors, allowed_cpus, read_processors

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that this process may keep busy, at least 1; hardware threads of one core are one."""
    return usable_processors().count


def usable_processors() -> Processors:
    """The processors that affinity and control group leave to this process."""
    quota = cgroup_quota(_CGROUP_ROOT, _read(Path("/proc/self/cgroup")))
    return read_processors(allowed_cpus(), quota=quota)


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
            tops = {root}
        elif "cpu" in controllers.split(","):
            tops = {root / "cpu", root / controllers}  # the first is a link, not made everywhere
        else:
            continue
        for top in sorted(tops):
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

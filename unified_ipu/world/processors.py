"""The processors that this process may use: cores, their hardware threads, memory nodes, quota."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

_SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True)
class Core:
    """One physical core, as far as it may be used.

    Args:
        cpus: Numbers of its hardware threads, as the kernel counts them.
        node: Of the memory beside it.
    """

    cpus: Tuple[int, ...]
    node: int = 0


@dataclass(frozen=True)
class Processors:
    """What one process may use of a machine.

    Args:
        cores: In order of their first hardware thread; at least one.
        quota: Cores' worth of time that the control group allows, or None without a limit.
    """

    cores: Tuple[Core, ...]
    quota: Optional[float] = None

    @property
    def cpus(self) -> Tuple[int, ...]:
        """All hardware threads, in order."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def nodes(self) -> Dict[int, Tuple[Core, ...]]:
        """The cores of each memory node that has any."""
        found: Dict[int, List[Core]] = {}
        for core in self.cores:
            found.setdefault(core.node, []).append(core)
        return {node: tuple(found[node]) for node in sorted(found)}

    @property
    def count(self) -> int:
        """Cores that can be kept busy, at least 1.

        Two hardware threads of one core share what computes, so they are one; of a quota of 1.5
        cores the half would be a thread that is stopped half of the time.
        """
        most = len(self.cores)
        return max(1, most if self.quota is None else min(most, int(self.quota)))


def read_processors(
    cpus: Tuple[int, ...], *, quota: Optional[float] = None, system: Path = _SYSTEM
) -> Processors:
    """Look up cores and nodes of hardware threads; those of which nothing is known are cores.

    Args:
        cpus: Numbers of the usable ones; at least one.
        quota: Of the control group, or None.
        system: Where the kernel describes them; it may be absent, as in some containers.

    Source: kernel documentation, admin-guide/cputopology (``core_cpus_list``, and its older name
    ``thread_siblings_list``) and ABI/stable/sysfs-devices-node (``node*/cpulist``).
    """
    nodes = {cpu: node for node, found in _nodes(system).items() for cpu in found}
    siblings: Dict[Tuple[int, ...], List[int]] = {}
    for cpu in sorted(set(cpus)):
        siblings.setdefault(_siblings(system, cpu), []).append(cpu)
    cores = [Core(tuple(found), nodes.get(found[0], 0)) for found in siblings.values()]
    return Processors(tuple(cores), quota)


def allowed_cpus() -> Tuple[int, ...]:
    """Numbers of the hardware threads on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@contextmanager
def running_on(cpus: Sequence[int]) -> Iterator[None]:
    """Let this thread, and the processes that it starts meanwhile, run on other processors.

    Args:
        cpus: Numbers of hardware threads; where the system does not allow them, nothing changes.
    """
    before = allowed_cpus()
    if tuple(sorted(cpus)) == before or not hasattr(os, "sched_setaffinity"):
        yield
        return
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def parse_cpus(text: str) -> Tuple[int, ...]:
    """Read a list as the kernel writes it: ``"0-3,8"``; ``()`` where it is none."""
    cpus: List[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return ()
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def format_cpus(cpus: Tuple[int, ...]) -> str:
    """Write a list as ``parse_cpus`` reads it."""
    spans: List[List[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _nodes(system: Path) -> Dict[int, Tuple[int, ...]]:
    found = {}
    for folder in (system / "node").glob("node[0-9]*"):
        found[int(folder.name[len("node") :])] = parse_cpus(_read(folder / "cpulist"))
    return found


def _siblings(system: Path, cpu: int) -> Tuple[int, ...]:
    topology = system / "cpu" / f"cpu{cpu}" / "topology"
    text = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
    siblings = parse_cpus(text)
    return siblings if cpu in siblings else (cpu,)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

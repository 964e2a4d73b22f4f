"""What part of a host's cores each of its processes has, whoever started and bound them."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence

from unified_ipu.world.cores import usable_processors

_OPENMP = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Sharing:
    """One process's part of its host.

    Args:
        processes: Of this world on the host, this one included.
        cores: That this process may keep busy, at least 1.
        threads: Of the largest pools of all these processes together.
        all_cores: That these processes may use together.
    """

    processes: int
    cores: int
    threads: int
    all_cores: int

    @property
    def warning(self) -> str:
        """Say that there are more threads than cores, and what to set; ``""`` if not."""
        if self.processes == 1 or self.threads <= max(self.all_cores, self.processes):
            return ""
        wanted = max(1, self.all_cores // self.processes)
        return (
            f"the {self.processes} processes of this host may start {self.threads} threads on "
            f"{self.all_cores} cores and stand in each other's way; set {_OPENMP}={wanted}, or "
            "have the launcher bind each process to cores of its own"
        )


def claim_cores(environ: Mapping[str, str]) -> Dict[str, Any]:
    """What this process may use and starts, as a JSON value for the others.

    Args:
        environ: Its thread settings.
    """
    processors = usable_processors()
    given = environ.get(_OPENMP, "").partition(",")[0]  # a list has a number for each level
    threads = int(given) if given.isdigit() and int(given) else processors.count
    return {
        "host": platform.node(),
        "cores": [list(core.cpus) for core in processors.cores],
        "quota": processors.quota,
        "threads": threads,
    }


def share_cores(claims: Sequence[Mapping[str, Any]], which: int) -> Sharing:
    """Work out the part of one process; pure.

    Cores that several may use count in parts: four processes on the same eight cores have two
    each, and four that are bound to two each have two as well.

    Args:
        claims: Of every process of the world, as ``claim_cores`` makes them.
        which: Index of the one that is asked about.
    """
    mine = claims[which]
    here = [claim for claim in claims if claim["host"] == mine["host"]]
    users: Dict[int, int] = {}
    for claim in here:
        for cpu in {cpu for core in claim["cores"] for cpu in core}:
            users[cpu] = users.get(cpu, 0) + 1
    part = sum(1.0 / max(users[cpu] for cpu in core) for core in mine["cores"])
    every: List[int] = sorted({min(core) for claim in here for core in claim["cores"]})
    total = len(every)
    quotas = [claim["quota"] for claim in here if claim["quota"] is not None]
    if quotas:
        part = min(part, min(quotas) / len(here))
        total = min(total, int(min(quotas)))
    return Sharing(
        processes=len(here),
        cores=max(1, int(part + 1e-9)),
        threads=sum(claim["threads"] for claim in here),
        all_cores=max(1, total),
    )

"""What Slurm says about all hosts of a step, in its own short forms."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import List

from unified_ipu.errors import ConfigError

_LOWEST_PORT = 20000  # below what Linux hands out itself, above well-known services
_NUM_PORTS = 12000


def tasks_per_node(text: str) -> List[int]:
    """Expand ``SLURM_STEP_TASKS_PER_NODE``.

    Args:
        text: Such as ``2(x3),1``: three hosts with two tasks, one with one.

    Raises:
        ConfigError: If it is something else.

    Source: srun(1) of Slurm 23.11, SLURM_TASKS_PER_NODE.
    """
    counts: List[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise ConfigError(
                f"SLURM_STEP_TASKS_PER_NODE={text!r} is not what srun sets; expected something "
                "like 2(x3),1"
            )
        counts += [int(found.group(1))] * int(found.group(2) or 1)
    return counts


def first_host(text: str) -> str:
    """The first host of a ``SLURM_STEP_NODELIST``, ``""`` if there is none.

    Args:
        text: Such as ``node[01-04,07],login``.

    Source: scontrol(1) of Slurm 23.11, ``show hostnames``.
    """
    found = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", text.strip())
    return "".join(part or "" for part in found.groups()) if found is not None else ""


def step_port(job: str) -> int:
    """A port that the ranks of a step can agree on without talking.

    Two jobs that share a host get the same one with a chance of 1 in 12,000, which rank 0 then
    reports; MASTER_PORT chooses another.

    Args:
        job: Name of the step.
    """
    digest = blake2b(job.encode(), digest_size=8).digest()
    return _LOWEST_PORT + int.from_bytes(digest, "little") % _NUM_PORTS

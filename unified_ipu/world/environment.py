"""The world as the environment tells it: the only module that reads ``os.environ``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.world.ancestor import launcher_token
from unified_ipu.world.launchers import LAUNCHERS, Launcher
from unified_ipu.world.slurm import first_host, step_port, tasks_per_node

HANDOVER_VARIABLE = "UNIFIED_IPU_HANDOVER"


@dataclass(frozen=True)
class Handover:
    """What the launcher was told on its command line and hands to every rank.

    Args:
        plan: Path given by ``--plan``, or None.
        settings: Each ``--set key=value``, in order.
    """

    plan: Optional[str] = None
    settings: Tuple[str, ...] = ()

    def to_json(self) -> str:
        """Text for ``UNIFIED_IPU_HANDOVER``."""
        return json.dumps({"plan": self.plan, "settings": list(self.settings)})

    @classmethod
    def from_json(cls, text: str) -> Handover:
        """Read what ``to_json`` wrote.

        Raises:
            ConfigError: If the text is not what our launcher writes.
        """
        try:
            table = json.loads(text)
            plan, settings = table["plan"], table["settings"]
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{HANDOVER_VARIABLE}={text!r} is not what `unified-ipu run` writes; unset it"
            ) from error
        is_plan = plan is None or isinstance(plan, str)
        if not is_plan or not all(isinstance(setting, str) for setting in settings):
            raise ConfigError(
                f"{HANDOVER_VARIABLE}={text!r} must hold a path and a list of strings; unset it"
            )
        return cls(plan, tuple(settings))


@dataclass(frozen=True)
class World:
    """All processes of this run, and which of them this one is.

    Args:
        rank: Index of this process in the world.
        local_rank: Index of this process on its host.
        world_size: Number of processes.
        local_world_size: Number of processes on this host.
        node_rank: Index of this host.
        launcher: Who started us: ``"none"``, ``"unified-ipu"``, ``"torchrun"``, ``"openmpi"``,
            ``"poprun"`` or ``"slurm"``.
        job: Unique to this run and restart and the same on all of its ranks; empty for one process.
        handover: What our launcher was told on its command line.
        address: ``host:port`` where ranks of several hosts meet; ``""`` where nothing tells it.
        is_address_served: Whether the launcher itself listens there; otherwise rank 0 has to.

    Raises:
        ConfigError: If the numbers contradict each other.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0
    launcher: str = "none"
    job: str = ""
    handover: Handover = field(default_factory=Handover)
    address: str = ""
    is_address_served: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} is outside a world of {self.world_size}; "
                "a rank is at least 0 and below the world size"
            )
        if not 0 <= self.local_rank < self.local_world_size:
            raise ConfigError(
                f"local rank {self.local_rank} is outside a host of {self.local_world_size} "
                "processes; a local rank is at least 0 and below the local world size"
            )
        if self.local_world_size > self.world_size:
            raise ConfigError(
                f"{self.local_world_size} processes on this host are more than the "
                f"{self.world_size} of the world"
            )
        if self.world_size > 1 and not self.job:
            raise ConfigError(
                f"a world of {self.world_size} needs a job name that all of its ranks share, "
                "and no other run does"
            )


def current_environment() -> Mapping[str, str]:
    """The environment of this process; everything else takes a mapping."""
    return os.environ


def read_world(environ: Mapping[str, str]) -> World:
    """Read which rank of which world this process is.

    Our own launcher's variables go before any other's: it may run under another one. A lone
    ``MASTER_PORT`` or ``WORLD_SIZE=1``, as an earlier run leaves behind, makes no world.

    Args:
        environ: The environment, see ``current_environment``.

    Raises:
        ConfigError: If variables are incomplete, no integers, or contradict each other.
    """
    handover = Handover()
    if environ.get(HANDOVER_VARIABLE):
        handover = Handover.from_json(environ[HANDOVER_VARIABLE])
    for names in LAUNCHERS:
        if _is_started_by(names, environ):
            return _read(names, environ, handover)
    return World(handover=handover)


def world_variables(world: World) -> Dict[str, str]:
    """The variables that make ``read_world`` return ``world``; what our launcher sets.

    Args:
        world: As one rank shall see it; its ``launcher`` is taken as ours.
    """
    return {
        "UNIFIED_IPU_RANK": str(world.rank),
        "UNIFIED_IPU_LOCAL_RANK": str(world.local_rank),
        "UNIFIED_IPU_WORLD_SIZE": str(world.world_size),
        "UNIFIED_IPU_LOCAL_WORLD_SIZE": str(world.local_world_size),
        "UNIFIED_IPU_JOB": world.job,
        HANDOVER_VARIABLE: world.handover.to_json(),
    }


def _is_started_by(names: Launcher, environ: Mapping[str, str]) -> bool:
    if names.marker and names.marker not in environ:
        return False
    has_rank, has_size = names.rank in environ, names.world_size in environ
    if has_rank and has_size:
        return True
    if has_size and _integer(names.world_size, environ) == 1:
        return False
    if has_rank or has_size:
        there, missing = names.rank, names.world_size
        if has_size:
            there, missing = missing, there
        raise ConfigError(
            f"{there}={environ[there]} is set but {missing} is not; a launcher sets both: "
            f"set {missing}, or unset {there} to run one process"
        )
    return False


def _read(names: Launcher, environ: Mapping[str, str], handover: Handover) -> World:
    rank = _integer(names.rank, environ)
    size = _integer(names.world_size, environ)
    # Started by hand with RANK and WORLD_SIZE only: one host.
    local_rank = _integer(names.local_rank, environ, rank)
    local_size = _local_world_size(names, environ, size)
    if local_size == size and local_rank != rank:
        raise ConfigError(
            f"{names.local_rank}={local_rank} contradicts {names.rank}={rank}: all {size} ranks "
            "are on this host, so they must be equal; fix them, or set "
            f"{names.local_world_size} if there are more hosts"
        )
    job = _job(names, environ, is_one_host=local_size == size) if size > 1 else ""
    return World(
        rank=rank,
        local_rank=local_rank,
        world_size=size,
        local_world_size=local_size,
        node_rank=_integer(names.node_rank, environ, 0),
        launcher=names.name,
        job=job,
        handover=handover,
        address=_address(names, environ, job, is_one_host=local_size == size) if job else "",
        is_address_served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and names.name == "torchrun",
    )


def _local_world_size(names: Launcher, environ: Mapping[str, str], size: int) -> int:
    if names.name == "slurm" and environ.get("SLURM_STEP_TASKS_PER_NODE"):
        counts = tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
        node = _integer(names.node_rank, environ, 0)
        return counts[node] if node < len(counts) else size
    return _integer(names.local_world_size, environ, size)


def _address(names: Launcher, environ: Mapping[str, str], job: str, *, is_one_host: bool) -> str:
    """Where ranks of several hosts meet; what other launchers left behind is not read."""
    if names.name == "unified-ipu" or (is_one_host and names.name != "torchrun"):
        return ""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if host and port:
        return f"{host}:{_integer('MASTER_PORT', environ)}"
    if names.name == "slurm":
        host = first_host(environ.get("SLURM_STEP_NODELIST", ""))
        return f"{host}:{step_port(job)}" if host else ""
    return ""


def _job(names: Launcher, environ: Mapping[str, str], *, is_one_host: bool) -> str:
    parts: List[str] = [environ[name] for name in names.job if environ.get(name)]
    if not parts:
        raise ConfigError(
            f"{names.rank} and {names.world_size} are set but none of {', '.join(names.job)}: "
            "nothing tells this run from another; set one of them to the same value on all ranks"
        )
    if names.name == "torchrun" and "TORCHELASTIC_RUN_ID" in environ and is_one_host:
        # Two runs one after the other may share address, port and run id ("none").
        parts.append(launcher_token("TORCHELASTIC_RUN_ID"))
    return "-".join(part for part in [names.name, *parts] if part)


def _integer(name: str, environ: Mapping[str, str], default: Optional[int] = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number; fix or unset it") from None

"""From a plan to running ranks: how many, with which environment and output."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Callable, List, Mapping, Optional, Sequence, Tuple, Union

from unified_ipu.errors import ConfigError
from unified_ipu.launch.devices import usable_gpus
from unified_ipu.launch.labels import Sink
from unified_ipu.launch.placement import Placement, place_ranks
from unified_ipu.launch.process import Event, Output, RankProcess
from unified_ipu.launch.supervise import Supervisor
from unified_ipu.plan import Plan, check_built, merge_plan, num_processes, resolve_mesh
from unified_ipu.world import (
    Handover,
    Processors,
    World,
    current_environment,
    usable_processors,
    world_variables,
)

PLAN_FILE = "plan.toml"
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True)
class Start:
    """What is the same for all ranks of a run.

    Args:
        num_ranks: Processes to start.
        environ: Of each rank, without its place in the world.
        notes: What was decided without being asked, a sentence each.
        bindings: Hardware threads of each rank; empty where none is bound.
    """

    num_ranks: int
    environ: Mapping[str, str]
    notes: Tuple[str, ...] = ()
    bindings: Tuple[Tuple[int, ...], ...] = ()


def plan_beside(program: str) -> Optional[str]:
    """``plan.toml`` in the folder of a script, or in the working directory if there is no script.

    Args:
        program: Path of the script, or ``""``.
    """
    folder = Path(program).resolve().parent if Path(program).is_file() else Path.cwd()
    found = folder / PLAN_FILE
    return str(found) if found.is_file() else None


def prepare(
    base: Union[str, Path, Plan, None],
    *,
    plan_path: Optional[str] = None,
    settings: Sequence[str] = (),
    environ: Optional[Mapping[str, str]] = None,
    processors: Optional[Processors] = None,
    bind: str = "auto",
) -> Start:
    """Check the plan and decide how many ranks there will be, before any is started.

    Args:
        base: The plan below the two others: a Plan, a file, or None.
        plan_path: Given by ``--plan``.
        settings: Given by ``--set``.
        environ: Instead of this process's.
        processors: Instead of the usable ones.
        bind: As ``place_ranks``.

    Raises:
        PlanError: If a setting is wrong or not built, or does not fit this host.
        ConfigError: If the ranks cannot be bound so.
    """
    environ = current_environment() if environ is None else environ
    processors = usable_processors() if processors is None else processors
    plan = merge_plan(base, plan_path=plan_path, settings=settings)
    check_built(plan)
    gpus = usable_gpus(environ)
    plan, notes = resolve_mesh(plan, world_size=None, cores=processors.count, gpus=gpus)
    if bind == "auto" and gpus > 0 and plan.target in {"auto", "cuda"}:
        bind = "none"  # the node that a rank should be bound to is the one of its GPU
    num_ranks = num_processes(plan)
    placed: Placement = place_ranks(processors, num_ranks=num_ranks, environ=environ, bind=bind)
    if placed.bindings and not hasattr(os, "sched_setaffinity"):
        raise ConfigError(
            f"--bind {bind}: processes cannot be bound on {sys.platform}; leave it out"
        )
    if placed.note:
        notes += (placed.note,)
    return Start(num_ranks, {**environ, **placed.variables}, notes, placed.bindings)


def start_ranks(
    start: Start,
    task: Sequence[str],
    *,
    handover: Handover,
    events: Optional[SimpleQueue[Event]] = None,
    python: str = sys.executable,
    payload: Optional[int] = None,
) -> Tuple[Supervisor, List[RankProcess]]:
    """Start all ranks.

    Args:
        start: From ``prepare``.
        task: Arguments for ``launch/child.py``.
        handover: For every rank's ``Session``.
        events: What the supervisor listens to, if others put into it as well.
        python: Interpreter.
        payload: A descriptor that all ranks inherit, or None.

    Returns:
        Who watches over them, and the processes by rank.

    Raises:
        LaunchError: If a process cannot be started; those before it are ended.
    """
    if events is None:
        events = SimpleQueue()
    job = secrets.token_hex(8) if start.num_ranks > 1 else ""
    processes: List[RankProcess] = []
    sinks = _Sinks()
    try:
        for rank in range(start.num_ranks):
            world = World(
                rank=rank,
                local_rank=rank,
                world_size=start.num_ranks,
                local_world_size=start.num_ranks,
                launcher="unified-ipu",
                job=job,
                handover=handover,
            )
            processes.append(
                RankProcess(
                    rank,
                    python=python,
                    task=task,
                    environ={**start.environ, **world_variables(world)},
                    output=sinks.output(rank),
                    events=events,
                    payload=payload,
                    cpus=start.bindings[rank] if start.bindings else (),
                )
            )
    except BaseException:
        for process in processes:
            process.close()
        raise
    return Supervisor(processes, events), processes


class _Sinks:
    """Where the output of each rank goes."""

    def __init__(self) -> None:
        # What is waiting in our own buffers comes before anything of the ranks.
        sys.stdout.flush()
        sys.stderr.flush()
        self._stdout = _writer(sys.stdout)
        self._stderr = _writer(sys.stderr)

    def output(self, rank: int) -> Output:
        if rank == 0:
            # Its own terminal, so that progress bars work; where there is none (a notebook),
            # through us.
            return Output(
                None if _descriptor(sys.stdout) == _STDOUT else self._stdout,
                None if _descriptor(sys.stderr) == _STDERR else self._stderr,
            )
        return Output(self._stdout, self._stderr, f"[rank {rank}] ")


def _writer(stream: IO[str]) -> Callable[[bytes], None]:
    descriptor = _descriptor(stream)
    if descriptor is not None:
        return Sink(descriptor).write

    def write(data: bytes) -> None:
        stream.write(data.decode(errors="replace"))
        stream.flush()

    return write


def _descriptor(stream: IO[str]) -> Optional[int]:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None

"""From a plan and an environment to this process's place: what happens when a session begins."""

from __future__ import annotations

import logging
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union

from unified_ipu.comms import Communicator
from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import (
    Plan,
    check_built,
    merge_plan,
    num_processes,
    replicas_per_process,
    resolve_mesh,
    runs_whole_calls,
)
from unified_ipu.session.poprun import check_poprun
from unified_ipu.world import (
    Mesh,
    Place,
    World,
    claim_cores,
    current_environment,
    read_world,
    share_cores,
    unread_launcher,
)

logger = logging.getLogger("unified_ipu.session")
_OTHERS = ("torchrun", "openmpi", "poprun", "slurm")


@dataclass(frozen=True)
class Joined:
    """A plan whose mesh is known, and this process in it.

    Args:
        world: As the launcher made it.
        plan: With ``mesh.data`` as a number.
        mesh: Named axes over the world.
        place: Of this process.
        script_folder: Where modules named in sources are looked up first.
    """

    world: World
    plan: Plan
    mesh: Mesh
    place: Place
    script_folder: str


def join_plan(
    plan: Union[str, Path, Plan, None], *, world: Optional[World], argv: Optional[Sequence[str]]
) -> Joined:
    """Merge the plan, read the world and check that the two fit.

    Args:
        plan: A Plan, a file, or None: ``plan.toml`` beside the script if it is there.
        world: Instead of the environment's.
        argv: Instead of ``sys.argv``; read for ``--plan`` and ``--set`` when no launcher of ours
            handed them over.

    Raises:
        PlanError: If a setting is wrong or not built, or the plan does not fit the world.
        ConfigError: If the environment contradicts itself.
    """
    arguments = list(sys.argv if argv is None else argv)
    folder = _script_folder(arguments)
    if world is None:
        world = read_world(current_environment())
        warning = unread_launcher(current_environment()) if world.launcher == "none" else ""
        if warning:
            logger.warning("%s", warning)
    if world.launcher == "unified-ipu":
        plan_path, settings = world.handover.plan, list(world.handover.settings)
    else:
        plan_path, settings = read_arguments(arguments[1:])
    if plan is None and (folder / "plan.toml").is_file():
        plan = folder / "plan.toml"
    merged = merge_plan(plan, plan_path=plan_path, settings=settings)
    check_poprun(merged, world)
    check_built(merged)
    if world.launcher == "none":
        _check_alone(merged, arguments, plan_path, settings)
    resolved, warnings = resolve_mesh(merged, world_size=world.world_size)
    if world.rank == 0 and world.launcher != "unified-ipu":  # our launcher has said it already
        for warning in warnings:
            logger.warning("%s", warning)
    mesh = Mesh(_axes(resolved))
    mesh.check(world.world_size)
    return Joined(world, resolved, mesh, _place(resolved, mesh, world), str(folder))


def share_host(joined: Joined, communicator: Communicator) -> Joined:
    """Tell each process its part of the host's cores; warn of more threads than there are.

    Collective. How another launcher has bound its processes only they know, each for itself.

    Args:
        joined: This process.
        communicator: Of the whole world.
    """
    claims = communicator.all_gather_value(claim_cores(current_environment()))
    sharing = share_cores(claims, communicator.rank)
    # Ours has said what it did; who gave a world by hand may have set threads by hand.
    is_read = joined.world.launcher in _OTHERS
    if sharing.warning and joined.place.local_rank == 0 and is_read:
        logger.warning("%s", sharing.warning)
    return replace(joined, place=replace(joined.place, cores=sharing.cores))


def _axes(plan: Plan) -> Dict[str, int]:
    """Axes of the processes: the stages of a device lie inside of one."""
    if runs_whole_calls(plan.target):
        return {"data": num_processes(plan)}
    return {"data": int(plan.mesh.data), "stage": plan.mesh.stage}


def _place(plan: Plan, mesh: Mesh, world: World) -> Place:
    """Of this process, with the replicas that it drives."""
    place = mesh.place(world.rank, world.local_rank, local_size=world.local_world_size)
    local = replicas_per_process(plan)
    first = place.replicas.start * local
    return replace(
        place, replicas=range(first, first + local), num_replicas=place.num_replicas * local
    )


def read_arguments(arguments: Sequence[str]) -> Tuple[Optional[str], List[str]]:
    """Find ``--plan P`` and each ``--set key=value`` among a script's own arguments.

    Raises:
        ConfigError: If one of them is the last word, without its value.
    """
    plan: Optional[str] = None
    settings: List[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in {"--plan", "--set"}:
            continue
        if not equals:
            following = next(words, None)
            if following is None:
                example = "plan.toml" if name == "--plan" else "mesh.data=2"
                raise ConfigError(f"{name} is the last argument; expected {name} {example}")
            value = following
        if name == "--plan":
            plan = value
        else:
            settings.append(value)
    return plan, settings


def _script_folder(arguments: Sequence[str]) -> Path:
    script = Path(arguments[0]) if arguments and arguments[0] else None
    if script is not None and script.is_file():
        return script.resolve().parent
    return Path.cwd()


def _check_alone(
    plan: Plan, arguments: Sequence[str], plan_path: Optional[str], settings: Sequence[str]
) -> None:
    resolved, _ = resolve_mesh(plan, world_size=None)
    needed = num_processes(resolved)
    if needed == 1:
        return
    command = ["unified-ipu", "run"]
    if plan_path is not None:
        command += ["--plan", plan_path]
    for setting in settings:
        command += ["--set", setting]
    command.append(arguments[0] if arguments and arguments[0] else "train.py")
    raise PlanError(
        f"mesh.data={resolved.mesh.data} needs {needed} processes, but this one was started alone; "
        f"start it with: {shlex.join(command)}"
    )

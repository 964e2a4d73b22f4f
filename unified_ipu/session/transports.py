"""Which transport moves the bytes, and joining the world over it."""

from __future__ import annotations

from typing import Callable

from unified_ipu.adapter import registered
from unified_ipu.comms import ArrangedCommunicator, Communicator, connect
from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import CommsSettings, why_no_algorithm
from unified_ipu.world import World

GROUP = "unified_ipu.transports"
_SEVERAL_HOSTS = "c10d"


def choose_transport(asked: str, world: World) -> str:
    """Resolve ``comms.transport``; the same on all ranks, since all hosts know of each other.

    Args:
        asked: What the plan says.
        world: All processes.

    Raises:
        PlanError: If ranks of several hosts shall share memory.
    """
    is_one_host = world.local_world_size == world.world_size
    if asked == "auto":
        return "shm" if is_one_host else _SEVERAL_HOSTS
    if asked == "shm" and not is_one_host:
        raise PlanError(
            f'comms.transport = "shm" with {world.world_size} processes, '
            f"{world.local_world_size} of them on this host: hosts share no memory; set "
            f'"auto" or "{_SEVERAL_HOSTS}"'
        )
    return asked


def check_algorithm(comms: CommsSettings, transport: str, world: World) -> None:
    """Refuse an algorithm that the transport cannot have, before ranks meet.

    Raises:
        PlanError: With the reason and what to set.
    """
    if comms.algorithm in {"auto", "direct"} or world.world_size == 1:
        return
    # Only whether there is more than one host counts here; who is where is found out later.
    ranks = [world.local_world_size]
    if world.local_world_size != world.world_size:
        ranks.append(world.world_size - world.local_world_size)
    problem = why_no_algorithm(comms.algorithm, transport, ranks)
    if problem:
        raise PlanError(
            f'comms.algorithm = "{comms.algorithm}" with {world.world_size} processes over '
            f'"{transport}": {problem}; set "auto"'
        )


def join_world(
    world: World,
    comms: CommsSettings,
    *,
    deterministic: bool = False,
    sums_gradients: bool = True,
) -> Communicator:
    """Meet the other ranks over the transport of the plan; returns when all are there.

    Args:
        world: Of this process.
        comms: The plan's ``[comms]`` table.
        deterministic: Whether nothing may be chosen by a measurement.
        sums_gradients: Whether these ranks do; devices do it themselves.

    Raises:
        ConfigError: If the transport's package is absent.
        PlanError: If the transport or the algorithm does not fit the world.
        CollectiveError: If the ranks do not come together.
    """
    name = choose_transport(comms.transport, world)
    check_algorithm(comms, name, world)
    if name == "shm" or world.world_size == 1:
        return connect(
            rank=world.rank,
            size=world.world_size,
            job=world.job,
            timeout_seconds=comms.timeout_seconds,
            stall_report_seconds=comms.stall_report_seconds,
        )
    communicator: Communicator = _load(name)(
        world=world,
        timeout_seconds=comms.timeout_seconds,
        stall_report_seconds=comms.stall_report_seconds,
    )
    try:
        if sums_gradients:
            _arrange(communicator, world, comms, deterministic=deterministic)
    except BaseException:
        communicator.close()
        raise
    return communicator


def _load(name: str) -> Callable[..., Communicator]:
    """What connects over a registered transport.

    Raises:
        ConfigError: If it is not there.
    """
    point = registered(GROUP).get(name)
    if point is None:
        raise ConfigError(
            f"comms.transport: {name!r} is not registered in {GROUP!r}; install the package that "
            "brings it"
        )
    try:
        connect_over: Callable[..., Communicator] = point.load()
    except ImportError as error:
        raise ConfigError(
            f"comms.transport: {name!r} needs what cannot be imported ({error}); between hosts "
            "that is torch: pip install 'unified-ipu[torch]'"
        ) from error
    return connect_over


def _arrange(
    communicator: Communicator, world: World, comms: CommsSettings, *, deterministic: bool
) -> None:
    """Choose how gradients are summed, where there is a choice.

    Raises:
        PlanError: If the transport has the direct way only, and another one is asked for.
    """
    is_one_host = world.local_world_size == world.world_size
    if comms.algorithm == "direct" or (comms.algorithm == "auto" and is_one_host):
        return
    if isinstance(communicator, ArrangedCommunicator):
        communicator.arrange(comms, node_rank=world.node_rank, deterministic=deterministic)
    elif comms.algorithm != "auto":
        raise PlanError(
            f'comms.algorithm = "{comms.algorithm}": this transport has "direct" only; set "auto"'
        )


def check_given(communicator: Communicator, comms: CommsSettings) -> None:
    """Refuse a communicator that does not sum gradients as the plan asks.

    Raises:
        PlanError: With both algorithms.
    """
    asked, has = comms.algorithm, algorithm_of(communicator) or "direct"
    if communicator.size > 1 and asked not in {"auto", has}:
        raise PlanError(
            f'comms.algorithm = "{asked}", but the communicator that was given sums by "{has}"; '
            'set "auto"'
        )


def algorithm_of(communicator: Communicator) -> str:
    """How gradients are summed over hosts, "" while that is open, or where there is no choice."""
    return communicator.algorithm if isinstance(communicator, ArrangedCommunicator) else ""


def prefer_algorithm(communicator: Communicator, algorithm: str) -> None:
    """Go on as a checkpoint was made, where there is a choice and it is still open."""
    if isinstance(communicator, ArrangedCommunicator):
        communicator.prefer(algorithm)

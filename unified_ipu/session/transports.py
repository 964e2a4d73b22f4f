"""Which transport moves the bytes, and joining the world over it."""

from __future__ import annotations

from unified_ipu.adapter import registered
from unified_ipu.comms import Communicator, connect
from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import CommsSettings
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


def join_world(world: World, comms: CommsSettings) -> Communicator:
    """Meet the other ranks over the transport of the plan; returns when all are there.

    Args:
        world: Of this process.
        comms: The plan's ``[comms]`` table.

    Raises:
        ConfigError: If the transport's package is absent.
        PlanError: If the transport does not fit the world.
        CollectiveError: If the ranks do not come together.
    """
    name = choose_transport(comms.transport, world)
    if name == "shm" or world.world_size == 1:
        return connect(
            rank=world.rank,
            size=world.world_size,
            job=world.job,
            timeout_seconds=comms.timeout_seconds,
            stall_report_seconds=comms.stall_report_seconds,
        )
    point = registered(GROUP).get(name)
    if point is None:
        raise ConfigError(
            f"comms.transport: {name!r} is not registered in {GROUP!r}; install the package that "
            "brings it"
        )
    try:
        connect_over = point.load()
    except ImportError as error:
        raise ConfigError(
            f"comms.transport: {name!r} needs what cannot be imported ({error}); between hosts "
            "that is torch: pip install 'unified-ipu[torch]'"
        ) from error
    communicator: Communicator = connect_over(
        world=world,
        timeout_seconds=comms.timeout_seconds,
        stall_report_seconds=comms.stall_report_seconds,
    )
    return communicator

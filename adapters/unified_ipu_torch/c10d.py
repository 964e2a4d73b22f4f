"""The c10d transport: ranks on several hosts, over torch's key-value store and gloo."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, List, Tuple

import torch.distributed

from unified_ipu.comms import Communicator, connect as connect_shm
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError, ConfigError
from unified_ipu.world import World, current_environment
from unified_ipu_torch.c10d_board import Board, address_towards
from unified_ipu_torch.c10d_communicator import C10dCommunicator
from unified_ipu_torch.c10d_watch import SLICE_SECONDS, WORLD, Watch
from unified_ipu_torch.c10d_wire import GlooWire

_LOOPBACK = "127.0.0.1"
_c10d: Any = torch.distributed  # its stores are public but for the type checker


def connect(
    *, world: World, timeout_seconds: float = 1800.0, stall_report_seconds: float = 30.0
) -> Communicator:
    """Meet the other ranks of a job; returns when all are there.

    Args:
        world: Of this process.
        timeout_seconds: How long a rank may be late, at the start and in any collective.
        stall_report_seconds: After how long a late rank is logged.

    Raises:
        ConfigError: If nothing tells where rank 0 is.
        CollectiveTimeoutError: If a rank does not come.
    """
    if world.world_size == 1:
        return connect_shm(rank=0, size=1, job="")
    store, serves = _open_store(world, timeout_seconds)
    # The store may outlive a session: the next one of the same job gets keys of its own.
    count = store.add(f"{world.job}/sessions/{world.rank}", 1)
    prefixed = _c10d.PrefixStore(f"{world.job}/{count}", store)
    board = Board(
        prefixed, world.rank, world.world_size, serves=serves, address=_own_address(world)
    )
    return _meet(board, timeout_seconds, stall_report_seconds)


def local_group(
    size: int, *, timeout_seconds: float = 1800.0, stall_report_seconds: float = 30.0
) -> List[Communicator]:
    """All ranks of a world inside one process, for one thread each; for tests."""
    if size == 1:
        return [connect_shm(rank=0, size=1, job="")]
    import threading

    store = _c10d.HashStore()
    made: List[Any] = [None] * size

    def join(rank: int) -> None:
        board = Board(store, rank, size, serves=False)
        made[rank] = _meet(board, timeout_seconds, stall_report_seconds)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def _meet(board: Board, timeout_seconds: float, stall_report_seconds: float) -> C10dCommunicator:
    board.join()
    deadline = time.monotonic() + timeout_seconds
    for rank in range(board.size):
        while not board.await_key(f"here/{rank}", SLICE_SECONDS):
            board.check()
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(
                    f"rank {rank} of {board.size} did not join within {timeout_seconds:g} s; see "
                    "its own output, or raise comms.timeout_seconds"
                )
    board.learn()
    watch = Watch(
        board,
        WORLD,
        range(board.size),
        timeout_seconds=timeout_seconds,
        stall_report_seconds=stall_report_seconds,
    )
    return C10dCommunicator(GlooWire(watch, board.store))


def _own_address(world: World) -> str:
    host, _, port = world.address.rpartition(":")
    # Who names an interface knows better; gloo reads the variable itself.
    is_named = bool(current_environment().get("GLOO_SOCKET_IFNAME"))
    return address_towards(host, int(port)) if host and not is_named else ""


def _open_store(world: World, timeout_seconds: float) -> Tuple[Any, bool]:
    """The store of this job, and whether it lives in this process.

    Raises:
        ConfigError: If nothing tells where it is.
    """
    timeout = timedelta(seconds=timeout_seconds)
    if world.address:
        host, _, port = world.address.rpartition(":")
        serves = world.rank == 0 and not world.is_address_served
        return (_serve if serves else _reach)(host, int(port), timeout), serves
    if world.local_world_size != world.world_size:
        raise ConfigError(
            f"{world.world_size} processes on several hosts, started by {world.launcher}: nothing "
            "tells where rank 0 is; set MASTER_ADDR to its host and MASTER_PORT to a free port "
            "there, the same on all ranks"
        )
    # One host and no port that is ours: rank 0 takes any free one and says which over shared
    # memory, where jobs cannot meet.
    first = connect_shm(
        rank=world.rank, size=world.world_size, job=world.job, timeout_seconds=timeout_seconds
    )
    try:
        own: Any = None
        if world.rank == 0:
            own = _serve(_LOOPBACK, 0, timeout)
        port = first.broadcast_value(own.port if own is not None else 0)
        store = own or _reach(_LOOPBACK, port, timeout)
        first.barrier("store open")
    finally:
        first.close()
    return store, world.rank == 0


def _serve(host: str, port: int, timeout: timedelta) -> Any:
    """The store, in this process.

    Raises:
        CollectiveError: If the port is taken.
    """
    try:
        return _c10d.TCPStore(host, port, is_master=True, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:
        raise CollectiveError(
            f"rank 0 cannot listen on port {port}: {str(error).splitlines()[0]}; set MASTER_PORT "
            "to a free one on all ranks"
        ) from error


def _reach(host: str, port: int, timeout: timedelta) -> Any:
    """The store of another process.

    Raises:
        CollectiveTimeoutError: If nobody answers.
    """
    try:
        return _c10d.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:
        raise CollectiveTimeoutError(
            f"nobody answers on {host}:{port}, where rank 0 or torchrun should listen, within "
            f"{timeout.total_seconds():g} s: {str(error).splitlines()[0]}"
        ) from error

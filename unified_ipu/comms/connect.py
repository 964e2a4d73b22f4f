"""Join a world of ranks on this host."""

from __future__ import annotations

import os
from typing import List, Optional, Sequence

from unified_ipu.comms.board import Board
from unified_ipu.comms.communicator import Communicator
from unified_ipu.comms.dump import install_dump
from unified_ipu.comms.futex import check_platform
from unified_ipu.comms.group import Group
from unified_ipu.comms.lanes import Lanes
from unified_ipu.comms.rendezvous import Meeting
from unified_ipu.comms.segment import PAGE_BYTES, Segment, round_up
from unified_ipu.comms.shm import ShmCommunicator
from unified_ipu.comms.signature import build_signature
from unified_ipu.comms.single import SingleCommunicator
from unified_ipu.comms.watch import Watch
from unified_ipu.errors import CollectiveError


def connect(
    *,
    rank: int,
    size: int,
    job: str,
    timeout_seconds: float = 1800.0,
    stall_report_seconds: float = 30.0,
    names: Optional[Sequence[int]] = None,
) -> Communicator:
    """Meet the other ranks of a job; returns when all are there.

    Args:
        rank: Of this process, ``0 <= rank < size``.
        size: Number of ranks, all on this host.
        job: Unique to this run and restart, the same on all its ranks; not needed for one rank.
        timeout_seconds: How long a rank may be late, at the start and in any collective.
        stall_report_seconds: After how long a late rank is logged.
        names: What messages call the ranks, where these are a part of a larger world.

    Raises:
        CollectiveError: If the ranks do not fit together, or the platform is refused.
        CollectiveTimeoutError: If a rank does not come.
        PeerLostError: If one ends on the way.
    """
    if not 0 <= rank < size:
        raise CollectiveError(f"rank {rank} is not in a world of {size} ranks (0..{size - 1})")
    if size == 1:
        return SingleCommunicator()
    check_platform()
    if not job:
        raise CollectiveError(f"a world of {size} ranks needs a job id that all of them know")
    meeting = Meeting(
        rank,
        size,
        job,
        timeout_seconds=timeout_seconds,
        stall_report_seconds=stall_report_seconds,
    )
    marker = -1
    if rank == 0:
        segment = _build_world(size)
        try:
            pids, marker = meeting.host(segment)
        except BaseException:
            segment.close_fd()
            raise
    else:
        pids, segment = meeting.join()
    segment.close_fd()
    watch = Watch(
        Board(segment, rank, size),
        timeout_seconds=timeout_seconds,
        stall_report_seconds=stall_report_seconds,
        names=names,
    )
    watch.board.publish(os.getpid(), install_dump())
    if marker >= 0:
        watch.keep(marker)
    communicator = _communicator(segment, watch, size)
    try:
        watch.follow(pids)
        communicator.enter(build_signature("connect"))
        communicator.finish()
    except BaseException:
        communicator.close()
        raise
    return communicator


def local_group(
    size: int, *, timeout_seconds: float = 1800.0, stall_report_seconds: float = 30.0
) -> List[Communicator]:
    """All ranks of a world inside one process, for one thread each; for tests.

    Args:
        size: Number of ranks.
        timeout_seconds: As in ``connect``.
        stall_report_seconds: As in ``connect``.

    Raises:
        CollectiveError: If the platform is refused.
    """
    if size == 1:
        return [SingleCommunicator()]
    segment = _build_world(size)
    segment.close_fd()
    communicators: List[Communicator] = []
    for rank in range(size):
        watch = Watch(
            Board(segment, rank, size),
            timeout_seconds=timeout_seconds,
            stall_report_seconds=stall_report_seconds,
        )
        watch.board.publish(os.getpid(), -1)
        communicators.append(_communicator(segment, watch, size))
    return communicators


def _build_world(size: int) -> Segment:
    segment = Segment.create(_lanes_offset(size) + Lanes.num_bytes(size), "world")
    Board(segment, 0, size).prepare()
    return segment


def _communicator(segment: Segment, watch: Watch, size: int) -> ShmCommunicator:
    group = Group(segment, _lanes_offset(size), watch, range(size))
    return ShmCommunicator(group, is_world=True)


def _lanes_offset(size: int) -> int:
    return round_up(Board.num_bytes(size), PAGE_BYTES)

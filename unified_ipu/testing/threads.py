"""Ranks as threads of one process: fast law tests for adapters that have no global state."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List

from unified_ipu.comms import Communicator, local_group
from unified_ipu.world import World

Rank = Callable[[World, Communicator], Any]


class RanksFailedError(Exception):
    """At least one rank raised; ``errors`` has the exception of each that did, by rank."""

    def __init__(self, errors: Dict[int, BaseException]) -> None:
        first = min(errors)
        super().__init__(f"rank {first}: {errors[first]!r} ({len(errors)} rank(s) failed)")
        self.errors = errors


def run_ranks(size: int, function: Rank, *, timeout_seconds: float = 60.0) -> List[Any]:
    """Run ``function(world, communicator)`` on ``size`` ranks, and return the results by rank.

    The communicators are those of the shared-memory transport, so the collectives are the real
    ones. When a rank raises, the others' waits end.

    Args:
        size: Number of ranks.
        function: What each rank does.
        timeout_seconds: Of every collective.

    Raises:
        RanksFailedError: If a rank raised.
    """
    communicators = local_group(size, timeout_seconds=timeout_seconds)
    results: List[Any] = [None] * size
    errors: Dict[int, BaseException] = {}

    def run(rank: int) -> None:
        communicator = communicators[rank]
        world = World(
            rank=rank,
            local_rank=rank,
            world_size=size,
            local_world_size=size,
            launcher="none" if size == 1 else "threads",
            job="threads",
        )
        try:
            results[rank] = function(world, communicator)
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            errors[rank] = error
            communicator.abort(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for communicator in communicators:
        communicator.close()
    if errors:
        raise RanksFailedError(errors)
    return results

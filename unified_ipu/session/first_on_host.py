"""One rank of each host goes first: for downloads, unpacking, caches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from unified_ipu.comms import Communicator
from unified_ipu.errors import PeerLostError
from unified_ipu.world import World


@contextmanager
def first_on_host(communicator: Communicator, world: World) -> Iterator[None]:
    """Run the body on the first rank of each host, then on the others; collective.

    The others wait without a time-out, since a download may take long.

    Args:
        communicator: Of the whole world.
        world: Which rank is the first on which host.

    Raises:
        PeerLostError: On the other ranks of a host whose first one failed.
    """
    mine = [world.node_rank, ""]
    if world.local_rank == 0:
        try:
            with communicator.phase("first on host"):
                yield
        except Exception as error:
            communicator.all_gather_value([world.node_rank, f"{type(error).__name__}: {error}"])
            raise
        communicator.all_gather_value(mine)
        return
    for rank, (node_rank, failure) in enumerate(communicator.all_gather_value(mine)):
        if failure and node_rank == world.node_rank:
            raise PeerLostError(f"rank {rank}, the first on this host, failed: {failure}")
    yield

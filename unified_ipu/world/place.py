"""Where this process stands in the world: rank, replicas and device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional


@dataclass(frozen=True)
class Place:
    """One process's place, as the mesh gives it.

    Args:
        rank: Index of this process in the world.
        local_rank: Index of this process on its host.
        coordinates: Index on each mesh axis, by axis name.
        replicas: The replicas this process drives, counted over the world.
        num_replicas: Data-parallel copies of the model over the world.
        device_index: Accelerator of this process, or None on CPU.
        local_size: Number of processes on this host, who share its cores.
        cores: That this process may keep busy; 0 where nothing was worked out.
    """

    rank: int = 0
    local_rank: int = 0
    coordinates: Mapping[str, int] = field(default_factory=dict)
    replicas: range = range(1)
    num_replicas: int = 1
    device_index: Optional[int] = None
    local_size: int = 1
    cores: int = 0

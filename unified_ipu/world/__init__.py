"""Who runs where: the world of processes, the mesh over it, and this process's place."""

from __future__ import annotations

from unified_ipu.world.cores import usable_cores as usable_cores
from unified_ipu.world.environment import (
    Handover as Handover,
    World as World,
    current_environment as current_environment,
    read_world as read_world,
    world_variables as world_variables,
)
from unified_ipu.world.launchers import unread_launcher as unread_launcher
from unified_ipu.world.mesh import Mesh as Mesh
from unified_ipu.world.packages import (
    Conflict as Conflict,
    Packages as Packages,
    conflicts as conflicts,
    installed_packages as installed_packages,
)
from unified_ipu.world.place import Place as Place
from unified_ipu.world.popdist import (
    PopDist as PopDist,
    join_popdist as join_popdist,
    read_popdist as read_popdist,
)

__all__ = [
    "Conflict",
    "Handover",
    "Mesh",
    "Packages",
    "Place",
    "PopDist",
    "World",
    "conflicts",
    "current_environment",
    "installed_packages",
    "join_popdist",
    "read_popdist",
    "read_world",
    "unread_launcher",
    "usable_cores",
    "world_variables",
]

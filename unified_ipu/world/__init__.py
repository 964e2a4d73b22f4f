"""Who runs where: the world of processes, the mesh over it, and this process's place."""

from __future__ import annotations

from unified_ipu.world.cores import (
    usable_cores as usable_cores,
    usable_processors as usable_processors,
)
from unified_ipu.world.environment import (
    Handover as Handover,
    World as World,
    current_environment as current_environment,
    read_world as read_world,
    world_variables as world_variables,
)
from unified_ipu.world.host import host_name as host_name
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
from unified_ipu.world.processors import (
    Core as Core,
    Processors as Processors,
    allowed_cpus as allowed_cpus,
    format_cpus as format_cpus,
    read_processors as read_processors,
    running_on as running_on,
)
from unified_ipu.world.sharing import (
    Sharing as Sharing,
    claim_cores as claim_cores,
    share_cores as share_cores,
)

__all__ = [
    "Conflict",
    "Core",
    "Handover",
    "Mesh",
    "Packages",
    "Place",
    "PopDist",
    "Processors",
    "Sharing",
    "World",
    "allowed_cpus",
    "claim_cores",
    "conflicts",
    "current_environment",
    "format_cpus",
    "host_name",
    "installed_packages",
    "join_popdist",
    "read_popdist",
    "read_processors",
    "read_world",
    "running_on",
    "share_cores",
    "unread_launcher",
    "usable_cores",
    "usable_processors",
    "world_variables",
]

"""A plan for devices against what PopRun has started: they have to say the same."""

from __future__ import annotations

import sys

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import Plan, device_batch
from unified_ipu.world import World, current_environment, read_popdist

DEVICE_TARGETS = ("ipu", "ipu-emulated")


def check_poprun(plan: Plan, world: World) -> None:
    """Refuse a plan that PopRun contradicts; a host target knows ranks only, so it may.

    Args:
        plan: As merged; ``mesh.data`` may be "auto".
        world: What MPI says of this process; where PopRun did not start it, nothing is checked.

    Raises:
        PlanError: Naming the setting, PopRun's value, and what to change.
        ConfigError: If PopRun and MPI number the processes differently.
    """
    if plan.target not in DEVICE_TARGETS or world.launcher != "poprun":
        return
    popdist = read_popdist(current_environment(), sys.modules.get("popdist"))
    if popdist is None:
        return
    if (popdist.instance, popdist.instances) != (world.rank, world.world_size):
        raise ConfigError(
            f"PopRun calls this process instance {popdist.instance} of {popdist.instances}, MPI "
            f"calls it rank {world.rank} of {world.world_size}; replicas would get each other's "
            "samples: start one poprun, and no mpirun around it"
        )
    local = plan.ipu.replicas_per_process
    if local != popdist.local_replicas:
        raise PlanError(
            f"ipu.replicas_per_process: got {local}, but PopRun gives each of its "
            f"{popdist.instances} processes {popdist.local_replicas}; set it to "
            f"{popdist.local_replicas}, or start poprun with --num-instances "
            f"{max(1, popdist.total_replicas // local)}"
        )
    data = plan.mesh.data
    if data not in {"auto", popdist.total_replicas}:
        raise PlanError(
            f"mesh.data: got {data}, but PopRun has {popdist.total_replicas} replicas; set it to "
            f'{popdist.total_replicas} or "auto", or start poprun with --num-replicas {data}'
        )
    batch, _ = device_batch(plan)
    if batch.ipus_per_replica != popdist.ipus_per_replica:
        raise PlanError(
            f"ipu.ipus_per_replica: {batch.ipus_per_replica} of this plan, but PopRun gives a "
            f"replica {popdist.ipus_per_replica}; set it to {popdist.ipus_per_replica}, or start "
            f"poprun with --ipus-per-replica {batch.ipus_per_replica}"
        )

"""The variables by which launchers tell a process its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Tuple


@dataclass(frozen=True)
class Launcher:
    """The variables of one launcher.

    Args:
        name: What ``World.launcher`` says.
        rank: Variable of the rank; so are the next four of what they say. ``""``: there is none.
        world_size: Number of processes.
        local_rank: Index on the host.
        local_world_size: Processes on the host.
        node_rank: Index of the host.
        job: Those that together tell this run from another.
        marker: Must be set as well; ``""``: nothing must.
    """

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str
    job: Tuple[str, ...]
    marker: str = ""


_OPENMPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "node_rank": "",
}

LAUNCHERS = (
    Launcher(
        name="unified-ipu",
        rank="UNIFIED_IPU_RANK",
        world_size="UNIFIED_IPU_WORLD_SIZE",
        local_rank="UNIFIED_IPU_LOCAL_RANK",
        local_world_size="UNIFIED_IPU_LOCAL_WORLD_SIZE",
        node_rank="",
        job=("UNIFIED_IPU_JOB",),
    ),
    Launcher(
        # Source: "Environment Variables" of the torchrun documentation, torch 2.13.
        name="torchrun",
        rank="RANK",
        world_size="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_world_size="LOCAL_WORLD_SIZE",
        node_rank="GROUP_RANK",
        job=(
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
        ),
    ),
    # Source: a log of poprun, Poplar SDK 3.3: it wraps mpirun, whose variables say who is who;
    # its own count replicas of the IPU, of which one process may drive several.
    Launcher(
        name="poprun", job=("PMIX_NAMESPACE",), marker="POPDIST_NUM_TOTAL_REPLICAS", **_OPENMPI
    ),
    # Source: mpirun(1) of Open MPI 4.1 and 5.0, section "Environment variables"; the namespace is
    # PMIx's name of the job.
    Launcher(name="openmpi", job=("PMIX_NAMESPACE",), **_OPENMPI),
    Launcher(
        # Source: srun(1) of Slurm 23.11, "OUTPUT ENVIRONMENT VARIABLES". A batch script has a
        # SLURM_PROCID too, but is no step: only srun sets what the marker names.
        name="slurm",
        rank="SLURM_PROCID",
        world_size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        local_world_size="",  # a list of all hosts, see slurm.py
        node_rank="SLURM_NODEID",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        marker="SLURM_STEP_ID",
    ),
)

# Set by launchers that are not read, each with its world's size. Source: Hydra's process manager
# (MPICH, Intel MPI), jsrun of IBM Spectrum LSF, and flux-run(1).
_UNREAD = (
    ("PMI_SIZE", "an MPI launcher (MPICH or Intel MPI)"),
    ("MPI_LOCALNRANKS", "an MPI launcher (MPICH or Intel MPI)"),
    ("JSM_NAMESPACE_SIZE", "jsrun"),
    ("FLUX_JOB_SIZE", "flux"),
)


def unread_launcher(environ: Mapping[str, str]) -> str:
    """Say that another launcher seems to have meant more than one process, or ``""``.

    Args:
        environ: Of a process that found itself alone.
    """
    for variable, who in _UNREAD:
        size = environ.get(variable, "")
        if size.isdigit() and int(size) > 1:
            return (
                f"{variable}={size}: {who} seems to have started {size} processes, but its "
                "variables are not read, so each of them trains alone; set RANK, WORLD_SIZE, "
                "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each, or use "
                "torchrun"
            )
    tasks = environ.get("SLURM_NTASKS", "")
    if "SLURM_JOB_ID" in environ and tasks.isdigit() and int(tasks) > 1:
        return (
            f"SLURM_NTASKS={tasks}: this job has {tasks} tasks, but this process was started "
            "without srun and trains alone; put srun before the command"
        )
    return ""

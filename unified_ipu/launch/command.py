"""The command line with which another launcher starts the same script under the same plan."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from unified_ipu.errors import PlanError
from unified_ipu.plan import Plan, device_batch

OTHER_LAUNCHERS = ("poprun", "torchrun", "mpirun", "srun")


def launcher_command(
    launcher: str,
    plan: Plan,
    script: str,
    script_args: Sequence[str] = (),
    *,
    plan_path: Optional[str] = None,
    settings: Sequence[str] = (),
) -> List[str]:
    """Return the words of the command.

    Args:
        launcher: One of ``OTHER_LAUNCHERS``.
        plan: Merged; ``mesh.data`` counts replicas over the world and must be a number.
        script: Path of the script.
        script_args: Its own arguments.
        plan_path: Handed on, as ``--plan``: a script that another launcher started reads it.
        settings: Handed on, each as ``--set``.

    Returns:
        Program and arguments.

    Raises:
        PlanError: If the number of replicas is not said, or does not divide into processes.

    Source: the PopRun user guide for ``--num-replicas`` (over all instances), ``--num-instances``,
    ``--ipus-per-replica`` and ``--executable-cache-path``; the manuals of torchrun, mpirun (Open
    MPI) and srun.
    """
    replicas = plan.mesh.data
    if replicas == "auto":
        raise PlanError(
            f'mesh.data = "auto": {launcher} has to be told how many replicas to start; pass '
            "--set mesh.data=N"
        )
    handed = [word for s in settings for word in ("--set", s)]
    if plan_path is not None:
        handed = ["--plan", plan_path, *handed]
    script_words = [script, *script_args, *handed]
    if launcher == "poprun":
        return [*_poprun(plan, replicas), "python", *script_words]
    starts: Dict[str, List[str]] = {
        "torchrun": ["torchrun", "--nproc-per-node", str(replicas)],
        "mpirun": ["mpirun", "-np", str(replicas), "python"],
        "srun": ["srun", "--ntasks", str(replicas), "python"],
    }
    return [*starts[launcher], *script_words]


def _poprun(plan: Plan, replicas: int) -> List[str]:
    local = plan.ipu.replicas_per_process
    if replicas % local:
        raise PlanError(
            f"ipu.replicas_per_process = {local}: {replicas} replicas (mesh.data) do not divide "
            f"into processes of {local}; choose a divisor of {replicas}"
        )
    batch, _ = device_batch(plan)
    words = ["poprun", "--num-replicas", str(replicas), "--num-instances", str(replicas // local)]
    words += ["--ipus-per-replica", str(batch.ipus_per_replica)]
    if plan.compile.cache_dir:
        words += ["--executable-cache-path", plan.compile.cache_dir]
    return words

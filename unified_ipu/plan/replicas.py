"""How many replicas there are: ``mesh.data`` as a number, fitted to the world."""

from __future__ import annotations

from typing import List, Optional, Tuple

from unified_ipu.errors import PlanError
from unified_ipu.plan.batch import BatchPlan
from unified_ipu.plan.device_batch import runs_whole_calls
from unified_ipu.plan.plan import Plan
from unified_ipu.plan.validation import shown


def resolve_mesh(
    plan: Plan, *, world_size: Optional[int], cores: int = 1, gpus: int = 0
) -> Tuple[Plan, Tuple[str, ...]]:
    """Decide ``mesh.data``, and with it the global batch size.

    Args:
        plan: Its ``mesh.data`` may be "auto".
        world_size: Processes that another launcher has started; None when ours decides.
        cores: Usable cores of this host; counts for ours only.
        gpus: Usable GPUs of this host; counts for ours only.

    Returns:
        The plan with ``mesh.data`` and ``batch.global_batch_size`` as numbers, and warnings.

    Raises:
        PlanError: If the mesh does not fit the world, or the batch does not fit the mesh.
    """
    if runs_whole_calls(plan.target):
        replicas = _on_devices(plan, world_size)
    else:
        replicas = _chosen(plan, cores, gpus) if world_size is None else _fitted(plan, world_size)
    batch = BatchPlan.from_plan(plan, replicas)
    resolved = plan.replace(
        mesh={"data": replicas},
        batch={
            "global_batch_size": batch.global_batch_size,
            "accumulation_per_replica": plan.batch.accumulation_per_replica,
        },
    )
    return resolved, idle_warnings(batch)


def replicas_per_process(plan: Plan) -> int:
    """Replicas that one process drives: several on devices, one elsewhere."""
    return plan.ipu.replicas_per_process if runs_whole_calls(plan.target) else 1


def num_processes(plan: Plan) -> int:
    """Processes over the world; the stages of a device lie inside of one.

    Args:
        plan: With ``mesh.data`` as a number.
    """
    replicas = int(plan.mesh.data)
    if runs_whole_calls(plan.target):
        return replicas // plan.ipu.replicas_per_process
    return replicas * plan.mesh.stage


def idle_warnings(batch: BatchPlan) -> Tuple[str, ...]:
    """Say which replicas never get a sample, and what would use them all.

    Args:
        batch: The arithmetic of the world.

    Returns:
        One sentence, or nothing when all are used.
    """
    if batch.num_idle_replicas == 0:
        return ()
    total, size, replicas = batch.global_batch_size, batch.micro_batch_size, batch.num_replicas
    used = batch.num_micro_batches
    said = (
        f"{batch.num_idle_replicas} of {replicas} replicas are idle: a global batch of {total} is "
        f"{used} micro-batches of {size}; "
    )
    if replicas > total:
        return (said + f"set mesh.data = {total} or less, or a larger batch.global_batch_size",)
    every = _largest_size_for_all(total, replicas)
    return (said + f"batch.micro_batch_size = {every} uses all, or set mesh.data = {used}",)


def _largest_size_for_all(total: int, replicas: int) -> int:
    """The B that deals ``total`` samples most evenly with a micro-batch for every replica."""
    even = -(-total // replicas)
    if -(-total // even) >= replicas:
        return even
    # ceil(G/B) >= R means B < G/(R-1).
    return -(-total // (replicas - 1)) - 1


def _on_devices(plan: Plan, world_size: Optional[int]) -> int:
    local, data = plan.ipu.replicas_per_process, plan.mesh.data
    if data == "auto":
        return local * (1 if world_size is None else world_size)
    if data % local:
        raise PlanError(
            f"ipu.replicas_per_process: got {local}, which does not divide the {data} replicas of "
            f"mesh.data; choose one of {', '.join(map(str, _divisors(data)))}"
        )
    if world_size is not None and data != local * world_size:
        raise PlanError(
            f"mesh.data: got {data} with ipu.replicas_per_process {local}, which makes "
            f"{data // local} processes; the world has {world_size}; start {data // local}, or set "
            f'mesh.data = "auto"'
        )
    return data


def _chosen(plan: Plan, cores: int, gpus: int) -> int:
    data = plan.mesh.data
    if data != "auto":
        return data
    on_gpus = gpus > 0 and plan.target in ("auto", "cuda")
    most = max(1, (gpus if on_gpus else cores) // plan.mesh.stage)
    total = plan.batch.global_batch_size
    if total is not None:
        most = min(most, -(-total // plan.batch.micro_batch_size))
    # Padding, or an accumulation that is given, fits some numbers of replicas only.
    for replicas in range(most, 0, -1):
        if _fits(plan, replicas):
            return replicas
    return most  # the caller's check says what does not fit


def _fits(plan: Plan, replicas: int) -> bool:
    try:
        BatchPlan.from_plan(plan, replicas)
    except PlanError:
        return False
    return True


def _fitted(plan: Plan, world_size: int) -> int:
    data, stage = plan.mesh.data, plan.mesh.stage
    if data == "auto":
        if world_size % stage:
            raise PlanError(
                f"mesh.stage: got {stage}, which does not divide the {world_size} processes of the "
                f"world; start a multiple of {stage} processes, or set mesh.stage to one of "
                f"{', '.join(map(str, _divisors(world_size)))}"
            )
        return world_size // stage
    if data * stage != world_size:
        raise PlanError(
            f"mesh.data: got {shown(data)} with mesh.stage {stage}, which makes {data * stage} "
            f"processes; the world has {world_size}; start {data * stage}, here with `unified-ipu "
            f'run --set mesh.data={data} SCRIPT`, or set mesh.data = "auto"'
        )
    return data


def _divisors(number: int) -> List[int]:
    return [d for d in range(1, number + 1) if number % d == 0]

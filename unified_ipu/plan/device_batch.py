"""The batch of a target with static shapes: whole updates, whole calls, processes of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

from unified_ipu.errors import PlanError
from unified_ipu.plan.batch import BatchPlan
from unified_ipu.plan.plan import Plan

Refusal = Tuple[str, str]

DEVICE_TARGETS = ("ipu", "ipu-emulated")


def runs_whole_calls(target: str) -> bool:
    """Whether a target is a device with static shapes; "auto" never means one."""
    return target in DEVICE_TARGETS


def notes_on_random_layers(plan: Plan) -> Tuple[str, ...]:
    """What a user of ``ipu.random_layers = "native"`` should know."""
    if plan.ipu.random_layers == "refuse":
        return ()
    note = "random layers draw by the device's own generator: masks depend on the call and the "
    return (note + "replicas, and a resumed run draws others",)


def notes_on_updates() -> Tuple[str, ...]:
    """In what updates of devices differ from the update law of host targets."""
    return (
        "the device skips no update: a gradient that is not finite reaches the weights",
        (
            "which parameters are used is fixed when a program is compiled: one that the samples "
            "of an update leave alone has a gradient of zero, which decay and momentum act on"
        ),
    )


@dataclass(frozen=True)
class DeviceBatch:
    """How a global batch lies on devices.

    Args:
        micro_batch_size: B, rows that one replica computes at once.
        updates_per_call: D.
        accumulation: A, micro-batches of a replica behind an update.
        local_replicas: R of one process.
        processes: P; R x P replicas over the world.
        stages: F, forward stages of a pipeline.
        ipus_per_replica: At least ``stages``.
    """

    micro_batch_size: int
    updates_per_call: int
    accumulation: int
    local_replicas: int
    processes: int
    stages: int
    ipus_per_replica: int

    @property
    def host_rows(self) -> int:
        """Axis 0 of what one process hands over for one call: D x A x R x B."""
        per_update = self.accumulation * self.local_replicas * self.micro_batch_size
        return self.updates_per_call * per_update

    @property
    def samples(self) -> int:
        """Behind one call, over the world."""
        return self.host_rows * self.processes

    @property
    def ipus(self) -> int:
        """Devices of one process."""
        return self.ipus_per_replica * self.local_replicas


def device_batch(plan: Plan) -> Tuple[DeviceBatch, Tuple[Refusal, ...]]:
    """Derive the batch of a device, and what of the plan no static shape can carry.

    Args:
        plan: ``mesh.data`` counts replicas over the world; "auto" means those of one process.

    Returns:
        The batch, made as if nothing was refused, and ``(plan field, reason and change)``.
    """
    refused: List[Refusal] = []
    local = plan.ipu.replicas_per_process
    replicas = local if plan.mesh.data == "auto" else plan.mesh.data
    if replicas % local:
        refused.append(
            (
                "ipu.replicas_per_process",
                (
                    f"{replicas} replicas (mesh.data) do not divide into processes of {local}; "
                    f"choose a divisor of {replicas}"
                ),
            )
        )
    stages = plan.mesh.stage
    ipus = stages if plan.ipu.ipus_per_replica is None else plan.ipu.ipus_per_replica
    if ipus < stages:
        refused.append(
            (
                "ipu.ipus_per_replica",
                f"{stages} stages (mesh.stage) need as many IPUs, got {ipus}; set it to {stages}",
            )
        )
    refused += _of_remainder(plan)
    try:
        batch = BatchPlan.from_plan(plan.replace({"batch.remainder": "exact"}), replicas)
        accumulation, size = batch.accumulation_per_replica, batch.global_batch_size
    except PlanError as error:
        refused.append(("batch.accumulation_per_replica", str(error)))
        accumulation, size = plan.batch.accumulation_per_replica or 1, 0
    per_round = plan.batch.micro_batch_size * replicas
    if size and size % per_round:
        lower, upper = size // per_round * per_round, -(-size // per_round) * per_round
        near = f"{upper}" if not lower else f"{lower} or {upper}"
        refused.append(
            (
                "batch.global_batch_size",
                (
                    f"shapes are static, so {size} has to be a multiple of micro_batch_size x "
                    f"replicas = {per_round}; set it to {near}"
                ),
            )
        )
    found = DeviceBatch(
        micro_batch_size=plan.batch.micro_batch_size,
        updates_per_call=plan.batch.updates_per_call,
        accumulation=accumulation,
        local_replicas=local,
        processes=max(1, replicas // local),
        stages=stages,
        ipus_per_replica=max(ipus, stages),
    )
    return found, tuple(refused)


def _of_remainder(plan: Plan) -> List[Refusal]:
    if plan.batch.remainder != "exact":
        return []
    return [
        (
            "batch.remainder",
            (
                '"exact" needs batches of any size, shapes are static here; set it to "pad" (rows '
                'of weight 0 complete the last update) or "drop"'
            ),
        )
    ]


def power_of_two_refusal(batch: DeviceBatch) -> Tuple[Refusal, ...]:
    """Refuse a number of IPUs that is no power of two: devices come in such groups only."""
    ipus = batch.ipus
    if ipus & (ipus - 1) == 0:
        return ()
    below = 1 << (ipus.bit_length() - 1)
    reason = (
        f"{batch.ipus_per_replica} IPUs x {batch.local_replicas} replicas = {ipus} in one process, "
        f"no power of two; use {below} or {2 * below}"
    )
    return (("ipu.replicas_per_process", reason),)

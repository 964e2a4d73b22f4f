"""What of a plan TensorFlow for IPU cannot do, each condition with its field and its words."""

from __future__ import annotations

from typing import List, Tuple

from unified_ipu.adapter import Plan
from unified_ipu.plan import DeviceBatch, power_of_two_refusal
from unified_ipu_tensorflow.ipu_schedule import SCHEDULES, overlap_length

MOST_PREFETCHED = 255
LEVEL = 2  # the plan's default

Refusals = List[Tuple[str, str]]
Condition = Tuple[bool, str, str]


def accumulates(batch: DeviceBatch) -> bool:
    """Whether Keras sums gradients over micro-batches: always in pipelines, else if there are some.

    With one micro-batch an update Keras leaves all options of accumulation alone.
    """
    return batch.stages > 1 or batch.accumulation > 1


def has_remote_buffers(plan: Plan) -> bool:
    """Whether something lies off chip."""
    ipu = plan.ipu
    places = (ipu.weights, ipu.optimizer_state, ipu.activations, ipu.accumulators)
    return "off-chip" in places


def refusals(plan: Plan, batch: DeviceBatch) -> Refusals:
    """Find what cannot be done.

    Args:
        plan: Any valid plan.
        batch: What ``device_batch`` made of it.

    Returns:
        ``(plan field, reason and what to change)``.
    """
    conditions = [
        *_of_pipeline(plan, batch),
        *_of_precision(plan, batch),
        *_of_memory(plan, batch),
        *_of_program(plan),
    ]
    found = [(field, words) for is_refused, field, words in conditions if is_refused]
    return [*_of_ipus(batch), *found]


def _of_ipus(batch: DeviceBatch) -> Refusals:
    """The number of replicas is no setting: Keras divides the IPUs by a power of two of stages."""
    needed = 1 << (batch.stages - 1).bit_length()
    if batch.ipus_per_replica == needed:
        return list(power_of_two_refusal(batch))
    words = (
        f"Keras takes {needed} IPUs a replica for {batch.stages} stage(s) (mesh.stage), rounded up "
        f"to a power of two, and makes replicas of the rest; got {batch.ipus_per_replica}, set it "
        f"to {needed}"
    )
    return [("ipu.ipus_per_replica", words)]


def _of_pipeline(plan: Plan, batch: DeviceBatch) -> List[Condition]:
    if batch.stages == 1:
        return []
    schedule = SCHEDULES[plan.pipeline.schedule]
    step = overlap_length(schedule, range(batch.stages), training=True)
    return [
        (
            batch.accumulation % step != 0,
            "batch.global_batch_size",
            (
                f"{batch.stages} stages under {schedule} train with a multiple of {step} "
                f"micro-batches a replica and update, got {batch.accumulation}; change it, or "
                "batch.micro_batch_size"
            ),
        ),
        (
            plan.pipeline.split != "auto",
            "pipeline.split",
            (
                "stages are assigned layer by layer in the model's own script "
                '(set_pipeline_stage_assignment); set it to "auto"'
            ),
        ),
    ]


def _of_precision(plan: Plan, batch: DeviceBatch) -> List[Condition]:
    precision = plan.precision
    sums_replicas = batch.local_replicas * batch.processes > 1 and not accumulates(batch)
    return [
        (
            precision.compute == "bfloat16",
            "precision.compute",
            'IPUs have no bfloat16; set "float16" or "float32"',
        ),
        (
            precision.compute == "float16" and precision.reduce == "float32" and sums_replicas,
            "precision.reduce",
            (
                'with precision.compute = "float16" gradients of replicas are summed in float32 '
                'only where they are accumulated; set it to "compute", or lower '
                "batch.micro_batch_size for more than one micro-batch"
            ),
        ),
        (
            precision.loss_scale == "dynamic",
            "precision.loss_scale",
            (
                "automatic loss scaling (ALSOptimizer) scales by a rule of its own and skips no "
                "update; set it to a number"
            ),
        ),
    ]


def _of_memory(plan: Plan, batch: DeviceBatch) -> List[Condition]:
    ipu = plan.ipu
    is_pipeline = batch.stages > 1
    in_pipelines = 'TensorFlow moves them in pipelines only (mesh.stage > 1); set "on-chip"'
    return [
        (
            ipu.weights == "off-chip" and not (is_pipeline and batch.local_replicas > 1),
            "ipu.weights",
            (
                "weights leave the chip only in parts of replicas of a pipeline (mesh.stage > 1 "
                'and ipu.replicas_per_process > 1); set "on-chip"'
            ),
        ),
        (
            ipu.weights == "off-chip" and batch.processes > 1,
            "ipu.weights",
            'PopDistStrategy has no sharded tensors; set "on-chip", or use one process',
        ),
        (ipu.activations == "off-chip" and not is_pipeline, "ipu.activations", in_pipelines),
        (ipu.accumulators == "off-chip" and not is_pipeline, "ipu.accumulators", in_pipelines),
        (
            ipu.optimizer_state == "off-chip" and not accumulates(batch),
            "ipu.optimizer_state",
            (
                "it leaves the chip only with more than one micro-batch an update; lower "
                'batch.micro_batch_size, or set "on-chip"'
            ),
        ),
        (
            ipu.replicated_tensor_sharding and ipu.optimizer_state == "on-chip",
            "ipu.replicated_tensor_sharding",
            (
                "TensorFlow shards only what lies off chip; set ipu.optimizer_state = "
                '"off-chip", or this to false'
            ),
        ),
        (
            ipu.replicated_tensor_sharding and batch.local_replicas == 1,
            "ipu.replicated_tensor_sharding",
            "one replica a process has nobody to share with; set it to false",
        ),
        (
            ipu.replicated_tensor_sharding and batch.processes > 1,
            "ipu.replicated_tensor_sharding",
            "PopDistStrategy has no sharded tensors; set it to false, or use one process",
        ),
    ]


def _of_program(plan: Plan) -> List[Condition]:
    folder = plan.compile.cache_dir
    return [
        (
            any(letter.isspace() for letter in folder),
            "compile.cache_dir",
            f"got {folder!r}; TF_POPLAR_FLAGS is cut at white space, choose a path without",
        ),
        (
            plan.compile.optimization_level != LEVEL,
            "compile.optimization_level",
            f"TensorFlow for IPU has no such setting; set it to {LEVEL}",
        ),
        (
            plan.comms.compression != "none",
            "comms.compression",
            'IPUs reduce by themselves; set it to "none"',
        ),
        (
            plan.ipu.prefetch_depth > MOST_PREFETCHED,
            "ipu.prefetch_depth",
            f"got {plan.ipu.prefetch_depth}; a queue takes 1 to {MOST_PREFETCHED}",
        ),
        (
            plan.ipu.offline_compile and not folder,
            "ipu.offline_compile",
            "what is compiled without a device is kept in a folder; set compile.cache_dir",
        ),
    ]

"""Our plan as options of PopTorch; pure, and written without PopTorch at hand.

One lowering of the update law: gradients are summed over accumulation and replicas, the loss that
the device sees is divided already, by coefficients that come in as one more input.

Source: PopTorch 3.4, ``python/options.py``, ``optim.py``, ``enums.py`` and
``docs/user_guide/{overview,batching,pipelining}.rst``; ``test_lower_torch.py`` holds the values.
"""

from __future__ import annotations

from typing import Any, List, Tuple

from unified_ipu.adapter import DeviceCall, Lowering, NativeCall, Plan
from unified_ipu.plan import (
    DeviceBatch,
    device_batch,
    device_fields,
    notes_on_random_layers,
    notes_on_updates,
    power_of_two_refusal,
)
from unified_ipu_torch.errors import NAME

TRAINING, INFERENCE = "training", "inference"
MOST_IPUS = 64
_LEVEL = 2  # the plan's default
ORDER = "update, then micro-batch of a replica, then replica, then row"

CORE = "the loop around the device"

Refusals = List[Tuple[str, str]]

FIELDS = device_fields(
    {
        "seed": "options.randomSeed",
        "mesh.data": "options.replicationFactor, options.Distributed",
        "mesh.stage": "options.setExecutionStrategy",
        "batch.global_batch_size": "options.Training.gradientAccumulation",
        "batch.micro_batch_size": "rows of the model's input",
        "batch.accumulation_per_replica": "options.Training.gradientAccumulation",
        "batch.updates_per_call": "options.deviceIterations",
        "update.lr_scaling": "poptorch_model.setOptimizer",
        "update.warmup_updates": "poptorch_model.setOptimizer",
        "update.base_global_batch_size": "poptorch_model.setOptimizer",
        "update.clip_norm": "optimizer max_grad_norm",
        "precision.compute": "model.half",
        "precision.reduce": "optimizer accum_type",
        "precision.loss_scale": "optimizer loss_scaling",
        "pipeline.schedule": "options.setExecutionStrategy",
        "pipeline.split": "poptorch.BeginBlock",
        "compile.cache_dir": "options.enableExecutableCaching",
        "ipu.ipus_per_replica": "options.autoRoundNumIPUs",
        "ipu.replicas_per_process": "options.replicationFactor",
        "ipu.partials_type": "options.Precision.setPartialsType",
        "ipu.stochastic_rounding": "options.Precision.enableStochasticRounding",
        "ipu.available_memory_proportion": "options.setAvailableMemoryProportion",
        "ipu.weights": "options.TensorLocations.setWeightLocation",
        "ipu.optimizer_state": "options.TensorLocations.setOptimizerLocation",
        "ipu.activations": "options.TensorLocations.setActivationLocation",
        "ipu.accumulators": "options.TensorLocations.setAccumulatorLocation",
        "ipu.replicated_tensor_sharding": "options.TensorLocations.setOptimizerLocation",
        "ipu.prefetch_depth": "options._Popart",
        "ipu.io_tiles": "options.TensorLocations.numIOTiles",
        "ipu.synthetic_data": "options.enableSyntheticData",
        "ipu.offline_compile": "options.useOfflineIpuTarget",
        "ipu.random_layers": "note",
    }
)
"""Where every field of the plan goes on IPUs, or that it has a meaning on the host only."""


def lower_for_ipu(plan: Plan, target: str) -> Lowering:
    """Map every plan field to PopTorch, or refuse it with the change to make.

    Args:
        plan: Any valid plan; ``mesh.data`` counts replicas over all processes.
        target: ``"ipu"`` or ``"ipu-emulated"``: the native settings are the same.

    Returns:
        The calls that configure training and inference, and what one call of the device takes.
    """
    batch, refused = device_batch(plan)
    refusals = [*refused, *power_of_two_refusal(batch), *_refused(plan, batch)]
    calls = [
        *_shape(plan, batch),
        *_execution(plan, batch),
        *_optimizer(plan),
        *_memory(plan, batch),
        *_inference(plan, batch),
    ]
    device_call = DeviceCall(
        ipus=batch.ipus,
        processes=batch.processes,
        host_rows=batch.host_rows,
        order=ORDER,
        samples=batch.samples,
    )
    return Lowering(
        NAME,
        target,
        refused=tuple(refusals),
        notes=_notes(plan, batch),
        calls=tuple(calls),
        device_call=None if refusals else device_call,
    )


def _refused(plan: Plan, batch: DeviceBatch) -> Refusals:
    """What PopTorch itself cannot do, each condition with its field and its words."""
    least = 2 * batch.stages - 1
    is_pipeline = batch.stages > 1
    table = (
        (
            batch.ipus > MOST_IPUS,
            "ipu.replicas_per_process",
            f"{batch.ipus} IPUs in one process; PopTorch takes {MOST_IPUS}, use more processes",
        ),
        (
            is_pipeline and batch.accumulation < least,
            "batch.global_batch_size",
            (
                f"{batch.stages} stages train with at least {least} micro-batches a replica and "
                f"update, got {batch.accumulation}; raise it, or lower batch.micro_batch_size"
            ),
        ),
        (
            is_pipeline and plan.pipeline.schedule != "1f1b",
            "pipeline.schedule",
            'PipelinedExecution interleaves; set it to "1f1b"',
        ),
        (
            is_pipeline and plan.pipeline.split != "auto",
            "pipeline.split",
            'blocks are named in the model (poptorch.BeginBlock); set it to "auto"',
        ),
        (
            plan.precision.compute == "bfloat16",
            "precision.compute",
            'IPUs have no bfloat16; set "float16" or "float32"',
        ),
        (
            plan.precision.loss_scale == "dynamic",
            "precision.loss_scale",
            (
                "automatic loss scaling wants the Mean reduction and float16 accumulators, ours "
                "are summed; set it to a number"
            ),
        ),
        (
            plan.comms.compression != "none",
            "comms.compression",
            'IPUs reduce by themselves; set it to "none"',
        ),
        (
            plan.compile.optimization_level != _LEVEL,
            "compile.optimization_level",
            f"PopTorch has no such setting; set it to {_LEVEL}",
        ),
        (
            plan.ipu.replicated_tensor_sharding and batch.local_replicas == 1,
            "ipu.replicated_tensor_sharding",
            "one replica a process has nobody to share with; set it to false",
        ),
    )
    return [(field, words) for is_refused, field, words in table if is_refused]


def _shape(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    found = [
        _training("options.deviceIterations", batch.updates_per_call, "batch.updates_per_call"),
        _training(
            "options.Training.gradientAccumulation", batch.accumulation, "batch.global_batch_size"
        ),
        _training("options.replicationFactor", batch.local_replicas, "ipu.replicas_per_process"),
        _training(
            "options.Training.accumulationAndReplicationReductionType",
            "=poptorch.ReductionType.Sum",
            "update.reduction",
        ),
        _training("options.outputMode", "=poptorch.OutputMode.Sum", CORE),
        _training("options.randomSeed", plan.seed, "seed"),
    ]
    if batch.local_replicas > 1:
        # True expects a broadcast that PopTorch does not have: such a model fails to compile.
        found.append(_training("options.broadcastBuffers", value=False, field="mesh.data"))
    if batch.processes > 1:
        found.append(
            _training(
                "options.Distributed.configureProcessId",
                f"=process_id, {batch.processes}",
                "mesh.data",
            )
        )
    return found


def _execution(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    found = []
    if batch.stages > 1:
        strategy = "=poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)"
        found.append(_training("options.setExecutionStrategy", strategy, "mesh.stage"))
    if plan.compile.cache_dir:
        found.append(
            _training(
                "options.enableExecutableCaching", plan.compile.cache_dir, "compile.cache_dir"
            )
        )
    if plan.ipu.synthetic_data:
        found.append(
            _training("options.enableSyntheticData", value=True, field="ipu.synthetic_data")
        )
    if plan.ipu.offline_compile:
        found.append(_training("options.useOfflineIpuTarget", 2, "ipu.offline_compile"))
    return found


def _optimizer(plan: Plan) -> List[NativeCall]:
    is_half = plan.precision.compute == "float16"
    sums_in_half = is_half and plan.precision.reduce == "compute"
    found = [
        _training(
            "optimizer.accum_type",
            "=torch.float16" if sums_in_half else "=torch.float32",
            "precision.reduce",
        )
    ]
    if is_half:
        found.append(_training("model.half", "=", "precision.compute"))
    if not isinstance(plan.precision.loss_scale, str):
        found.append(
            _training("optimizer.loss_scaling", plan.precision.loss_scale, "precision.loss_scale")
        )
    if plan.update.clip_norm is not None:
        found.append(
            _training("optimizer.max_grad_norm", plan.update.clip_norm, "update.clip_norm")
        )
    # A rate that only changes in param_groups is never sent: once a call, before it.
    found.append(_training("poptorch_model.setOptimizer", "=optimizer", "update.lr_scaling"))
    return found


def _memory(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    ipu = plan.ipu
    found = [
        _training(
            "options.Precision.setPartialsType", f"=torch.{ipu.partials_type}", "ipu.partials_type"
        ),
        _training(
            "options.Precision.enableStochasticRounding",
            ipu.stochastic_rounding,
            "ipu.stochastic_rounding",
        ),
    ]
    if ipu.available_memory_proportion is not None:
        share = {f"IPU{index}": ipu.available_memory_proportion for index in range(batch.stages)}
        found.append(
            _training(
                "options.setAvailableMemoryProportion", share, "ipu.available_memory_proportion"
            )
        )
    for kind, location in (
        ("Weight", ipu.weights),
        ("Optimizer", ipu.optimizer_state),
        ("Activation", ipu.activations),
        ("Accumulator", ipu.accumulators),
    ):
        settings = "=poptorch.TensorLocationSettings()"
        settings += f".useOnChipStorage({location == 'on-chip'})"
        if kind == "Optimizer" and ipu.replicated_tensor_sharding:
            settings += ".useReplicatedTensorSharding(True)"
        name = f"options.TensorLocations.set{kind}Location"
        found.append(_training(name, settings, _LOCATIONS[kind]))
    if ipu.io_tiles:
        found.append(_training("options.TensorLocations.numIOTiles", ipu.io_tiles, "ipu.io_tiles"))
    depth = f'="defaultPrefetchBufferingDepth", {ipu.prefetch_depth}'
    found.append(_training("options._Popart.set", depth, "ipu.prefetch_depth"))
    return found


_LOCATIONS = {
    "Weight": "ipu.weights",
    "Optimizer": "ipu.optimizer_state",
    "Activation": "ipu.activations",
    "Accumulator": "ipu.accumulators",
}


def _inference(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    """Options of their own: no accumulation, and a pipeline that is long enough to fill."""

    def call(name: str, value: Any, field: str) -> NativeCall:
        return NativeCall(INFERENCE, name, value, field)

    return [
        call("options.Training.gradientAccumulation", 1, CORE),
        call("options.deviceIterations", max(batch.stages, 1), "mesh.stage"),
        call("options.replicationFactor", batch.local_replicas, "ipu.replicas_per_process"),
        call("options.outputMode", "=poptorch.OutputMode.All", CORE),
        call("options.Precision.enableStochasticRounding", value=False, field=CORE),
        call("options.randomSeed", plan.seed, "seed"),
    ]


def _notes(plan: Plan, batch: DeviceBatch) -> Tuple[str, ...]:
    found = [
        (
            "the loss is multiplied by coefficients that come in as an input, so Sum is right for "
            f'update.reduction = "{plan.update.reduction}"'
        ),
        "layers that look at the batch (batch normalisation) see one micro-batch of one replica",
        *notes_on_updates(),
    ]
    if batch.local_replicas > 1:
        found.append("running statistics stay with each replica; PopTorch returns those of one")
    if plan.precision.compute == "float16" and plan.precision.reduce == "compute":
        found.append("gradients are summed in float16 and may overflow above 65504")
    found += notes_on_random_layers(plan)
    if plan.deterministic:
        found.append("a program repeats with its seed; that was not tried on hardware")
    if batch.processes > 1:
        found.append("PopTorch broadcasts no weights: the first process's are sent by the host")
    return tuple(found)


def _training(name: str, value: Any, field: str) -> NativeCall:
    return NativeCall(TRAINING, name, value, field)

"""Our plan as settings of PopART; pure, and written without PopART at hand.

As for PopTorch, gradients are summed over accumulation and replicas, and the loss that the device
sees is divided already, by coefficients that come in as one more input.

Source: PopART of SDK 3.4, ``willow/include/popart/{sessionoptions,dataflow,adam,sgd}.hpp``,
``willow/src/ir.cpp``, ``python/popart/__init__.py.in`` and ``docs/popart/supported_ops.rst``;
``tests/adapters/lowering/test_lower_onnx.py`` holds the values.
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
from unified_ipu_onnx.errors import NAME

TRAINING, INFERENCE = "training", "inference"
NEWEST_OPSET = 11
ORDER = "update, then micro-batch of a replica, then replica, then row"

CORE = "the loop around the device"
_LEVEL = 2  # the plan's default

FIELDS = device_fields(
    {
        "seed": "session.setRandomSeed",
        "mesh.data": "opts.globalReplicationFactor",
        "mesh.stage": "opts.enablePipelining",
        "batch.global_batch_size": "opts.accumulationFactor",
        "batch.micro_batch_size": "rows of the model's input",
        "batch.accumulation_per_replica": "opts.accumulationFactor",
        "batch.updates_per_call": "popart.DataFlow",
        "update.lr_scaling": "session.updateOptimizerFromHost",
        "update.warmup_updates": "session.updateOptimizerFromHost",
        "update.base_global_batch_size": "session.updateOptimizerFromHost",
        "update.clip_norm": "popart.ClipNormSettings",
        "precision.compute": "popart.GraphTransformer.convertFloatsToHalfs",
        "precision.reduce": "optimizer accumType",
        "precision.loss_scale": "optimizer lossScaling",
        "pipeline.schedule": "opts.enablePipelining",
        "pipeline.split": "opts.virtualGraphMode",
        "compile.cache_dir": "opts.cachePath",
        "ipu.ipus_per_replica": "DeviceManager.acquireAvailableDevice",
        "ipu.replicas_per_process": "opts.replicatedGraphCount",
        "ipu.partials_type": "opts.partialsTypeMatMuls, opts.convolutionOptions",
        "ipu.stochastic_rounding": "opts.enableStochasticRounding",
        "ipu.available_memory_proportion": "node attribute __available_memory",
        "ipu.weights": "opts.weightTensorLocationSettings",
        "ipu.optimizer_state": "opts.optimizerStateTensorLocationSettings",
        "ipu.activations": "opts.activationTensorLocationSettings",
        "ipu.accumulators": "opts.accumulatorTensorLocationSettings",
        "ipu.replicated_tensor_sharding": "opts.optimizerStateTensorLocationSettings",
        "ipu.prefetch_depth": "opts.defaultBufferingDepth",
        "ipu.io_tiles": "opts.numIOTiles",
        "ipu.synthetic_data": "opts.syntheticDataMode",
        "ipu.offline_compile": "DeviceManager.createOfflineIPUDevice",
        "ipu.random_layers": "note",
    }
)
"""Where every field of the plan goes on IPUs, or that it has a meaning on the host only."""


def lower_for_ipu(plan: Plan, target: str) -> Lowering:
    """Map every plan field to PopART, or refuse it with the change to make.

    Args:
        plan: Any valid plan; ``mesh.data`` counts replicas over all processes.
        target: ``"ipu"`` or ``"ipu-emulated"``: the native settings are the same.

    Returns:
        The calls that configure training and inference, and what one call of the device takes.
    """
    batch, refused = device_batch(plan)
    refusals = [*refused, *power_of_two_refusal(batch), *_refused(plan, batch)]
    calls = [
        *_flow(batch),
        *_replication(batch),
        *_execution(plan, batch),
        *_optimizer(plan),
        *_memory(plan, batch),
        *_device(plan, batch),
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


def _refused(plan: Plan, batch: DeviceBatch) -> List[Tuple[str, str]]:
    """What PopART itself cannot do, each condition with its field and its words."""
    is_pipeline = batch.stages > 1
    depth = 2 * batch.stages - 1  # the last forward stage is one with its backward
    table = (
        (
            is_pipeline and batch.accumulation < depth,
            "batch.global_batch_size",
            (
                f"a pipeline of {batch.stages} stages, with backward {depth}, fills with at least "
                f"{depth} micro-batches a replica and update, got {batch.accumulation}; raise it, "
                "or lower batch.micro_batch_size"
            ),
        ),
        (
            is_pipeline and plan.pipeline.schedule != "1f1b",
            "pipeline.schedule",
            'PopART\'s pipeline interleaves; set it to "1f1b"',
        ),
        (
            is_pipeline and plan.pipeline.split != "auto",
            "pipeline.split",
            (
                "stages are node attributes (__pipeline_stage) of the model, or PopART's own "
                'choice; set it to "auto"'
            ),
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
                "automatic loss scaling wants a variable scale and the Mean reduction, ours is "
                "summed; set it to a number"
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
            f"PopART has patterns and no such level; set it to {_LEVEL}",
        ),
        (
            plan.ipu.replicated_tensor_sharding and batch.local_replicas == 1,
            "ipu.replicated_tensor_sharding",
            "one replica a process has nobody to share with; set it to false",
        ),
    )
    return [(field, words) for is_refused, field, words in table if is_refused]


def _flow(batch: DeviceBatch) -> List[NativeCall]:
    return [
        _training("popart.DataFlow.batchesPerStep", batch.updates_per_call, _PER_CALL),
        # Updates of a call may weigh differently, so each one's loss comes back.
        _training("popart.DataFlow.anchorReturnType", '=popart.AnchorReturnType("All")', CORE),
        _training("opts.enableGradientAccumulation", batch.accumulation > 1, _GLOBAL),
        _training("opts.accumulationFactor", batch.accumulation, _GLOBAL),
        # PopART's default, which others change: here it is said, not assumed.
        _training(
            "opts.accumulationAndReplicationReductionType",
            "=popart.ReductionType.Sum",
            "update.reduction",
        ),
    ]


def _replication(batch: DeviceBatch) -> List[NativeCall]:
    local, processes = batch.local_replicas, batch.processes
    found = [
        # With distributed graphs a local factor of 1 must not be switched on.
        _training("opts.enableReplicatedGraphs", local > 1, "ipu.replicas_per_process"),
        _training("opts.replicatedGraphCount", local, "ipu.replicas_per_process"),
    ]
    if processes > 1:
        offset = f"=process_id * {local}"
        found += [
            _training("opts.enableDistributedReplicatedGraphs", value=True, field="mesh.data"),
            _training("opts.globalReplicationFactor", local * processes, "mesh.data"),
            _training("opts.globalReplicaOffset", offset, "mesh.data"),
        ]
    return found


def _execution(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    found = []
    if batch.stages > 1:
        found += [
            _training("opts.enablePipelining", value=True, field="mesh.stage"),
            _training("opts.virtualGraphMode", "=popart.VirtualGraphMode.Auto", "pipeline.split"),
            _training("opts.autoRecomputation", "=popart.RecomputationType.Pipeline", "mesh.stage"),
        ]
    mode = "RandomNormal" if plan.ipu.synthetic_data else "Off"
    found.append(
        _training(
            "opts.syntheticDataMode", f"=popart.SyntheticDataMode.{mode}", "ipu.synthetic_data"
        )
    )
    found.append(_training("session.setRandomSeed", plan.seed, "seed"))
    return found


def _optimizer(plan: Plan) -> List[NativeCall]:
    is_half = plan.precision.compute == "float16"
    sums_in_half = is_half and plan.precision.reduce == "compute"
    kind = "FLOAT16" if sums_in_half else "FLOAT"
    separate = "=popart.SGDAccumulatorAndMomentum.Separate"
    found = [
        _training("optimizer.accumType", f"=popart.DataType.{kind}", "precision.reduce"),
        # A combined velocity would hold parts of the next update, and be what is clipped.
        _training("optimizer.accumulatorAndMomentum", separate, CORE),
    ]
    if is_half:
        found.append(
            _training("popart.GraphTransformer.convertFloatsToHalfs", "=", "precision.compute")
        )
    if not isinstance(plan.precision.loss_scale, str):
        scale = (float(plan.precision.loss_scale), False)  # not constant
        found.append(_training("optimizer.lossScaling", scale, "precision.loss_scale"))
    if plan.update.clip_norm is not None:
        clip = f"=popart.ClipNormSettings.clipAllWeights({plan.update.clip_norm!r})"
        found.append(_training("optimizer.clip_norm_settings", clip, "update.clip_norm"))
    # A constant value is compiled in: rates are declared variable, and sent before each call.
    found.append(
        _training("session.updateOptimizerFromHost", "=optimizer(rate)", "update.lr_scaling")
    )
    return found


def _memory(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    ipu = plan.ipu
    found = [
        *_types_and_streams(plan, TRAINING),
        _training("opts.enableStochasticRounding", ipu.stochastic_rounding, _ROUNDING),
    ]
    for kind, location in (
        ("weight", ipu.weights),
        ("optimizerState", ipu.optimizer_state),
        ("activation", ipu.activations),
        ("accumulator", ipu.accumulators),
    ):
        storage = "OnChip" if location == "on-chip" else "OffChip"
        place = f"popart.TensorStorage.{storage}"
        if kind == "optimizerState" and ipu.replicated_tensor_sharding:
            domain = ""
            if batch.processes > 1:  # sharding over all processes is refused
                group = f"popart.CommGroupType.Consecutive, {batch.local_replicas}"
                domain = f", popart.CommGroup({group})"
            place = f"popart.TensorLocation({place}, popart.ReplicatedTensorSharding.On{domain})"
        name = f"opts.{kind}TensorLocationSettings"
        found.append(_training(name, f"=popart.TensorLocationSettings({place})", _PLACES[kind]))
    return found


def _types_and_streams(plan: Plan, program: str) -> List[NativeCall]:
    """What training and inference have in common."""
    ipu = plan.ipu
    partials = {"float32": "float", "float16": "half"}[ipu.partials_type]
    convolutions = {"partialsType": partials}
    found = [
        NativeCall(program, "opts.partialsTypeMatMuls", partials, "ipu.partials_type"),
        NativeCall(program, "opts.convolutionOptions", convolutions, "ipu.partials_type"),
        NativeCall(program, "opts.defaultBufferingDepth", ipu.prefetch_depth, _DEPTH),
        NativeCall(program, "opts.numIOTiles", ipu.io_tiles, "ipu.io_tiles"),
    ]
    if ipu.available_memory_proportion is not None:
        share = ipu.available_memory_proportion
        name = "node.attribute.__available_memory"
        found.append(NativeCall(program, name, share, "ipu.available_memory_proportion"))
    if plan.compile.cache_dir:
        field = "compile.cache_dir"
        found.append(NativeCall(program, "opts.enableEngineCaching", value=True, field=field))
        found.append(NativeCall(program, "opts.cachePath", plan.compile.cache_dir, field))
    return found


def _device(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    if plan.ipu.offline_compile:
        asked = {"numIPUs": batch.ipus}
        return [_training("DeviceManager.createOfflineIPUDevice", asked, "ipu.offline_compile")]
    name = "DeviceManager.acquireAvailableDevice"
    return [_training(name, batch.ipus, "ipu.ipus_per_replica")]


def _inference(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    """A session of its own: accumulation is for training only, a pipeline must be filled."""

    def call(name: str, value: Any, field: str) -> NativeCall:
        return NativeCall(INFERENCE, name, value, field)

    pipeline = []
    if batch.stages > 1:
        pipeline = [
            call("opts.enablePipelining", value=True, field="mesh.stage"),
            call("opts.virtualGraphMode", "=popart.VirtualGraphMode.Auto", "pipeline.split"),
        ]
    return [
        call("popart.DataFlow.batchesPerStep", batch.stages, "mesh.stage"),
        call("popart.DataFlow.anchorReturnType", '=popart.AnchorReturnType("All")', CORE),
        call("opts.enableGradientAccumulation", value=False, field=CORE),
        call("opts.accumulationFactor", 1, CORE),
        call("opts.enableReplicatedGraphs", batch.local_replicas > 1, "ipu.replicas_per_process"),
        call("opts.replicatedGraphCount", batch.local_replicas, "ipu.replicas_per_process"),
        # What is trained is sent to it before it runs.
        call("opts.constantWeights", value=False, field=CORE),
        call("opts.enableStochasticRounding", value=False, field=CORE),
        *_types_and_streams(plan, INFERENCE),
        *pipeline,
        call("session.setRandomSeed", plan.seed, "seed"),
    ]


def _notes(plan: Plan, batch: DeviceBatch) -> Tuple[str, ...]:
    found = [
        (
            "the loss is multiplied by coefficients that come in as an input, so Sum is right for "
            f'update.reduction = "{plan.update.reduction}"'
        ),
        f"the model's opset must be at most {NEWEST_OPSET}; import popart before onnx",
        "every value of the optimizer is given: PopART's defaults are not those of others",
        "leading axes of 1 are dropped from what comes back; it is reshaped by known factors",
        "int64 inputs are sent as int32, float64 as float32",
        *notes_on_updates(),
    ]
    if plan.precision.compute == "float16" and plan.precision.reduce == "compute":
        found.append("gradients are summed in float16 and may overflow above 65504")
    if plan.ipu.stochastic_rounding:
        found.append("stochastic rounding turns on target.deterministicWorkers")
    found += notes_on_random_layers(plan)
    if plan.deterministic:
        found.append("a program repeats with its seed; that was not tried on hardware")
    if batch.processes > 1:
        found.append("popdist.init() is called once, before the session")
    return tuple(found)


_PER_CALL = "batch.updates_per_call"
_GLOBAL = "batch.global_batch_size"
_ROUNDING = "ipu.stochastic_rounding"
_DEPTH = "ipu.prefetch_depth"
_PLACES = {
    "weight": "ipu.weights",
    "optimizerState": "ipu.optimizer_state",
    "activation": "ipu.activations",
    "accumulator": "ipu.accumulators",
}


def _training(name: str, value: Any, field: str) -> NativeCall:
    return NativeCall(TRAINING, name, value, field)

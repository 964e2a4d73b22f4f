"""The settings of IPUConfig, the strategy and Keras for IPU that a plan becomes, in order."""

from __future__ import annotations

from typing import Any, List

from unified_ipu.adapter import NativeCall, Plan
from unified_ipu.plan import DeviceBatch
from unified_ipu_tensorflow.ipu_refusals import accumulates, has_remote_buffers
from unified_ipu_tensorflow.ipu_schedule import SCHEDULES, overlap_length

TRAINING, INFERENCE = "training", "inference"
CORE = "the loop around the device"


def device_calls(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    """What comes before the model: flags, IPUConfig, strategy, seeds."""
    return [*_flags(plan), *_config(plan), *_devices(batch), *_strategy(plan, batch)]


def _flags(plan: Plan) -> List[NativeCall]:
    """Read once, when TensorFlow is imported; an unknown one ends the process."""
    flags, fields = [], []
    if plan.compile.cache_dir:
        flags.append(f"--executable_cache_path={plan.compile.cache_dir}")
        fields.append("compile.cache_dir")
    if plan.ipu.synthetic_data:
        flags += ["--synthetic_data_categories=infeed", "--synthetic_data_initializer=random"]
        fields.append("ipu.synthetic_data")
    if not flags:
        return []
    return [_call("os.environ.update", {"TF_POPLAR_FLAGS": " ".join(flags)}, *fields)]


def _config(plan: Plan) -> List[NativeCall]:
    ipu = plan.ipu
    options = {"partialsType": "half" if ipu.partials_type == "float16" else "float"}
    fields = ["ipu.partials_type"]
    if ipu.available_memory_proportion is not None:
        options["availableMemoryProportion"] = str(ipu.available_memory_proportion)
        fields.append("ipu.available_memory_proportion")
    rounding = "ON" if ipu.stochastic_rounding else "OFF"
    found = [
        _call("config.convolutions.poplar_options", options, *fields),
        _call("config.matmuls.poplar_options", options, *fields),
        _call(
            "config.floating_point_behaviour.esr",
            f"=ipu.config.StochasticRoundingBehaviour.{rounding}",
            "ipu.stochastic_rounding",
        ),
    ]
    if ipu.io_tiles:
        found += [
            _call("config.io_tiles.num_io_tiles", ipu.io_tiles, "ipu.io_tiles"),
            _call("config.io_tiles.place_ops_on_io_tiles", True, "ipu.io_tiles"),
        ]
    if ipu.offline_compile:
        kind = "=ipu.config.DeviceConnectionType.PRE_COMPILE"
        found += [
            _call("config.device_connection.type", kind, "ipu.offline_compile"),
            _call("config.device_connection.version", "ipu2", "ipu.offline_compile"),
            _call(
                "config.device_connection.enable_remote_buffers",
                has_remote_buffers(plan),
                "ipu.offline_compile",
            ),
        ]
    return found


def _devices(batch: DeviceBatch) -> List[NativeCall]:
    if batch.processes > 1:
        words = _code("config", ipus_per_replica=batch.ipus_per_replica, configure_device="=True")
        chosen = _call("popdist.tensorflow.set_ipu_config", words, "mesh.data")
    else:
        fields = ("ipu.replicas_per_process", "ipu.ipus_per_replica")
        chosen = _call("config.auto_select_ipus", batch.ipus, *fields)
    return [chosen, _call("config.configure_ipu_system", "=", "target")]


def _strategy(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    several = batch.processes > 1
    name = "ipu.distributed.popdist_strategy.PopDistStrategy"
    found = [
        _call(name if several else "ipu.ipu_strategy.IPUStrategyV1", "=", "mesh.data"),
        _call("tf.random.set_seed", plan.seed, "seed"),
        _call("ipu.utils.reset_ipu_seed", plan.seed, "seed"),
    ]
    if plan.precision.compute == "float16":
        # "mixed_float16" would wrap the optimizer in a dynamic loss scale of its own.
        policy = "keras.mixed_precision.set_global_policy"
        found.append(_call(policy, "float16", "precision.compute"))
    return found


def model_calls(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    """What the model is told, then what is said again before every call of the device."""
    steps = batch.updates_per_call * batch.accumulation
    size = _code(batch.micro_batch_size, drop_remainder="=True")
    compiled = _code("optimizer, loss", steps_per_execution=steps)
    # The data set of a call holds its micro-batches and no more, and Keras counts them: what
    # steps_per_epoch counts, those of one replica or of all, its documents and its source say
    # differently.
    fit = _code("dataset", shuffle="=False")
    fields = ("batch.updates_per_call", "batch.global_batch_size")
    found = [
        *_accumulation(plan, batch),
        _call(
            "model.set_infeed_queue_options",
            _code(prefetch_depth=plan.ipu.prefetch_depth),
            "ipu.prefetch_depth",
        ),
    ]
    if batch.local_replicas > 1:
        method = _code(replicated_metric_reduction_method="SUM")
        found.append(_call("model.set_replication_options", method, "ipu.replicas_per_process"))
    if batch.updates_per_call > 1:
        # Otherwise only what comes after the last update is heard of.
        code = _code(asynchronous="=True")
        found.append(_call("model.set_asynchronous_callbacks", code, "batch.updates_per_call"))
    return [
        *found,
        *_update(plan, batch),
        _call("model.compile", compiled, *fields),
        _call("dataset.batch", size, "batch.micro_batch_size"),
        # Keras computes the loss, and each row's weight is its coefficient.
        _call("sample_weight", _weights(plan), "update.reduction"),
        _call("optimizer.learning_rate.assign", "=rate", "update.lr_scaling"),
        _call("model.fit", fit, *fields),
    ]


def _weights(plan: Plan) -> str:
    scale = plan.precision.loss_scale
    return "=coefficients" if isinstance(scale, str) else f"=coefficients * {float(scale)}"


def _accumulation(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    if not accumulates(batch):
        return []
    ipu, is_pipeline = plan.ipu, batch.stages > 1
    options = {
        "gradient_accumulation_steps_per_replica": batch.accumulation,
        "gradient_accumulation_reduction_method": "sum",
        # None, the default, would leave the choice to the compiler.
        "offload_weight_update_variables": ipu.optimizer_state == "off-chip",
        "replicated_optimizer_state_sharding": ipu.replicated_tensor_sharding,
    }
    fields = ["batch.global_batch_size", "ipu.optimizer_state", "ipu.replicated_tensor_sharding"]
    if plan.precision.compute == "float16":
        name = "gradient_accumulation_dtype" if is_pipeline else "dtype"
        kind = "float16" if plan.precision.reduce == "compute" else "float32"
        options[name] = f"=tf.{kind}"
        fields.append("precision.reduce")
    if not is_pipeline:
        return [_call("model.set_gradient_accumulation_options", _code(**options), *fields)]
    off_chip_weights = ipu.weights == "off-chip"
    schedule = SCHEDULES[plan.pipeline.schedule]
    options.update(
        pipeline_schedule=f"=ipu.ops.pipelining_ops.PipelineSchedule.{schedule}",
        accumulate_outfeed=False,
        offload_activations=ipu.activations == "off-chip",
        offload_gradient_accumulation_buffers=ipu.accumulators == "off-chip",
        # Weights leave the chip only where they are shared out.
        replicated_weight_sharding=off_chip_weights,
        offload_weights=off_chip_weights,
    )
    fields += ["pipeline.schedule", "ipu.activations", "ipu.accumulators", "ipu.weights"]
    return [
        _call("model.set_pipeline_stage_assignment", "=stages", "mesh.stage", "pipeline.split"),
        _call("model.set_pipelining_options", _code(**options), *fields),
    ]


def _update(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    """Clipping comes first in Keras, so it sees what the loss scale has not left yet."""
    scale = plan.precision.loss_scale
    is_scaled = not isinstance(scale, str)
    factor = 1.0 if isinstance(scale, str) else float(scale)
    # The value of tf.keras.losses.Reduction.SUM, a name that Keras 3 lacks.
    found = [_call("loss.reduction", "sum", "update.reduction")]
    if plan.update.clip_norm is not None:
        norm = plan.update.clip_norm * factor
        found.append(_call("optimizer.global_clipnorm", norm, "update.clip_norm"))
    is_wide = (
        accumulates(batch)
        and plan.precision.compute == "float16"
        and plan.precision.reduce == "float32"
    )
    if is_scaled or is_wide:
        gradient = f"g / {factor}" if is_scaled else "g"
        code = f"=[lambda pairs: [(tf.cast({gradient}, v.dtype), v) for g, v in pairs]]"
        fields = [
            *(["precision.loss_scale"] if is_scaled else []),
            *(["precision.reduce"] if is_wide else []),
        ]
        found.append(_call("optimizer.gradient_transformers", code, *fields))
    return found


def inference_calls(plan: Plan, batch: DeviceBatch) -> List[NativeCall]:
    """Evaluation and prediction never accumulate; a pipeline has to fill."""
    schedule = SCHEDULES[plan.pipeline.schedule]
    steps = overlap_length(schedule, range(batch.stages), training=False)
    compiled = _code("optimizer, loss", steps_per_execution=steps)
    fields = ("mesh.stage", "pipeline.schedule")
    found = []
    if batch.local_replicas > 1:
        # With "SUM", as training has it, predict would return sums of the outputs.
        name, method = (
            "model.set_replication_options",
            _code(replicated_metric_reduction_method="NONE"),
        )
        found.append(NativeCall(INFERENCE, name, method, "ipu.replicas_per_process"))
    return [
        *found,
        NativeCall(INFERENCE, "model.compile", compiled, ", ".join(fields)),
        NativeCall(INFERENCE, "model.predict", _code("dataset"), CORE),
    ]


def _call(name: str, value: Any, *fields: str) -> NativeCall:
    return NativeCall(TRAINING, name, value, ", ".join(fields))


def _code(*first: Any, **named: Any) -> str:
    """Arguments as they are written in a script; text that begins with ``=`` is code already."""
    words = [str(each) for each in first]
    for name, value in named.items():
        is_code = isinstance(value, str) and value.startswith("=")
        words.append(f"{name}={value[1:] if is_code else repr(value)}")
    return "=" + ", ".join(words)

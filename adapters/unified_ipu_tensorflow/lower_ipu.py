"""Our plan as settings of TensorFlow for IPU; pure, and written without it at hand.

As for the other frameworks, gradients are summed over accumulation and replicas, and the loss that
the device sees is divided already: Keras for IPU takes no ``train_step`` of ours, so the
coefficients come in as sample weights, under losses that sum.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/config.py``, ``ipu_strategy.py``,
``distributed/popdist_strategy.py``, ``ops/pipelining_ops.py``, and its Keras,
``keras/ipu/extensions/extensions_base.py``, ``keras/optimizer_v2/optimizer_v2.py``;
``tests/adapters/lowering/test_lower_tensorflow.py`` holds the values.
"""

from __future__ import annotations

from typing import List

from unified_ipu.adapter import DeviceCall, Lowering, Plan
from unified_ipu.plan import (
    DeviceBatch,
    device_batch,
    device_fields,
    notes_on_random_layers,
    notes_on_updates,
)
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.ipu_calls import device_calls, inference_calls, model_calls
from unified_ipu_tensorflow.ipu_refusals import accumulates, refusals

ORDER = "update, then micro-batch of a replica, then replica, then row"
RATES = "optimizer.learning_rate.assign"
SUMS = "model.set_gradient_accumulation_options, model.set_pipelining_options"

FIELDS = device_fields(
    {
        "seed": "tf.random.set_seed, ipu.utils.reset_ipu_seed",
        "mesh.data": "ipu.distributed.popdist_strategy.PopDistStrategy",
        "mesh.stage": "model.set_pipeline_stage_assignment",
        "batch.global_batch_size": SUMS,
        "batch.micro_batch_size": "dataset.batch",
        "batch.accumulation_per_replica": SUMS,
        "batch.updates_per_call": "model.compile, model.fit",
        "update.lr_scaling": RATES,
        "update.warmup_updates": RATES,
        "update.base_global_batch_size": RATES,
        "update.clip_norm": "optimizer.global_clipnorm",
        "precision.compute": "keras.mixed_precision.set_global_policy",
        "precision.reduce": SUMS,
        "precision.loss_scale": "sample_weight, optimizer.gradient_transformers",
        "pipeline.schedule": "model.set_pipelining_options",
        "pipeline.split": "model.set_pipeline_stage_assignment",
        "compile.cache_dir": "TF_POPLAR_FLAGS",
        "ipu.ipus_per_replica": "config.auto_select_ipus",
        "ipu.replicas_per_process": "config.auto_select_ipus",
        "ipu.partials_type": "config.convolutions.poplar_options, config.matmuls.poplar_options",
        "ipu.stochastic_rounding": "config.floating_point_behaviour.esr",
        "ipu.available_memory_proportion": (
            "config.convolutions.poplar_options, config.matmuls.poplar_options"
        ),
        "ipu.weights": "model.set_pipelining_options",
        "ipu.optimizer_state": SUMS,
        "ipu.activations": "model.set_pipelining_options",
        "ipu.accumulators": "model.set_pipelining_options",
        "ipu.replicated_tensor_sharding": SUMS,
        "ipu.prefetch_depth": "model.set_infeed_queue_options",
        "ipu.io_tiles": "config.io_tiles.num_io_tiles",
        "ipu.synthetic_data": "TF_POPLAR_FLAGS",
        "ipu.offline_compile": "config.device_connection.type",
        "ipu.random_layers": "note",
    }
)
"""Where every field of the plan goes on IPUs, or that it has a meaning on the host only."""


def lower_for_ipu(plan: Plan, target: str) -> Lowering:
    """Map every plan field to TensorFlow for IPU, or refuse it with the change to make.

    Args:
        plan: Any valid plan; ``mesh.data`` counts replicas over all processes.
        target: ``"ipu"`` or ``"ipu-emulated"``: the native settings are the same.

    Returns:
        The calls that configure training and inference, and what one call of the device takes.
    """
    batch, refused = device_batch(plan)
    all_refused = (*refused, *refusals(plan, batch))
    device_call = DeviceCall(
        ipus=batch.ipus,
        processes=batch.processes,
        host_rows=batch.host_rows,
        order=ORDER,
        samples=batch.samples,
    )
    calls = [
        *device_calls(plan, batch),
        *model_calls(plan, batch),
        *inference_calls(plan, batch),
    ]
    return Lowering(
        NAME,
        target,
        refused=all_refused,
        notes=(*_notes_on_losses(plan, batch), *_notes_on_devices(plan, batch)),
        calls=tuple(calls),
        device_call=None if all_refused else device_call,
    )


def _notes_on_losses(plan: Plan, batch: DeviceBatch) -> List[str]:
    # PopDistStrategy divides them by all replicas, IPUStrategyV1 by the 1 that it calls in sync.
    times = batch.accumulation * (1 if batch.processes > 1 else batch.local_replicas)
    precision = plan.precision
    is_scaled = not isinstance(precision.loss_scale, str)
    scale = f"{precision.loss_scale}" if is_scaled else "1"
    whole = " x W" if plan.update.reduction == "sum" else ""
    # Of losses that are sums, PopDistStrategy reports as many times itself.
    replicas = batch.processes * batch.local_replicas
    in_sync = f" / {replicas}" if batch.processes > 1 else ""
    found = [
        (
            "the loss is multiplied by coefficients that come in as sample weights, so sum is "
            f'right for update.reduction = "{plan.update.reduction}"'
        ),
        (
            f"Keras adds model.losses (regularizers, add_loss) {times} time(s) an update as they "
            f"are: multiply them by {scale}{whole} / {times}, or take them out"
        ),
        (
            f"Keras reports means over micro-batches: times {batch.accumulation}"
            f"{f' / {scale}' if is_scaled else ''}{in_sync} they are the loss of an update"
        ),
        *notes_on_updates(),
    ]
    if precision.compute == "float16" and not is_scaled:
        found.append("coefficients below 6.1e-5 lose digits in float16; scale the loss")
    if precision.compute == "float16" and precision.reduce == "compute":
        found.append("gradients are summed in float16 and may overflow above 65504")
    return found


def _notes_on_devices(plan: Plan, batch: DeviceBatch) -> List[str]:
    found = ["layers that look at the batch (batch normalisation) see one micro-batch of a replica"]
    found += notes_on_random_layers(plan)
    if batch.stages > 1:
        found += [
            "moving statistics of batch normalisation are not kept right by pipelines",
            (
                f"stages names the stage of each layer, 0 to {batch.stages - 1} without a gap; "
                "keras.ipu.PipelineStage says the same, but not under PopDistStrategy"
            ),
        ]
    if plan.ipu.stochastic_rounding:
        found.append("evaluation rounds at random too: IPUConfig is the process's")
    if plan.deterministic:
        found.append("a program repeats with its seed; that was not tried on hardware")
    if plan.compile.cache_dir or plan.ipu.synthetic_data:
        found.append("TF_POPLAR_FLAGS is read once: set it before TensorFlow is imported")
    if plan.ipu.offline_compile:
        found.append('compiled for IPUs of the second generation; for Bow write "ipu21"')
    if batch.processes > 1:
        replicas = batch.processes * batch.local_replicas
        found += [
            (
                f"start with poprun --num-instances={batch.processes} --num-replicas={replicas} "
                f"--ipus-per-replica={batch.ipus_per_replica}"
            ),
            "PopDist is not public: its arguments are those of Graphcore's examples",
        ]
    if not accumulates(batch) and batch.local_replicas * batch.processes > 1:
        found.append("replicas exchange gradients after every micro-batch: there is one an update")
    return found

"""TensorFlow for IPU from a plan, against what its documents and sources say; no SDK is needed.

One file, since it is one table of facts: each test is a line of the documents and its literal
values, and a reader who looks for a setting finds it by its name.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Dict

import pytest

from tests.adapters.lowering.walk import BASE, OTHER, check_field, fields
from unified_ipu.plan import Plan
from unified_ipu_tensorflow.ipu_calls import CORE
from unified_ipu_tensorflow.ipu_schedule import overlap_length
from unified_ipu_tensorflow.lower import lower
from unified_ipu_tensorflow.lower_ipu import FIELDS, RATES, lower_for_ipu

PIPELINE: Dict[str, Any] = {"mesh.stage": 2, "batch.micro_batch_size": 4}
REPLICAS: Dict[str, Any] = {"mesh.data": 2, "ipu.replicas_per_process": 2}
PROCESSES: Dict[str, Any] = {"mesh.data": 4, "ipu.replicas_per_process": 2}
GRADIENTS = "model.set_gradient_accumulation_options"
STAGES = "model.set_pipelining_options"

# Where TensorFlow differs from the others: what else is needed for the field to be mapped.
NEEDED_HERE: Dict[str, Dict[str, Any]] = {
    "pipeline.schedule": PIPELINE,
    "ipu.weights": {**PIPELINE, **REPLICAS},
    "ipu.activations": PIPELINE,
    "ipu.accumulators": PIPELINE,
    "ipu.replicated_tensor_sharding": {**REPLICAS, "ipu.optimizer_state": "off-chip"},
    "ipu.offline_compile": {"compile.cache_dir": "cache"},
}


def lowered(**settings):
    return lower_for_ipu(Plan().replace({**BASE, **settings}), "ipu")


def calls(program="training", **settings):
    found = lowered(**settings)
    assert found.refused == ()
    return {call.name: call.value for call in found.calls if call.program == program}


def refused(**settings):
    found = lowered(**settings)
    assert found.device_call is None
    return dict(found.refused)


@pytest.mark.parametrize("field", sorted(set(OTHER) - set(NEEDED_HERE) - {"ipu.ipus_per_replica"}))
def test_every_field_is_mapped_or_refused_or_of_the_host(field):
    assert fields(Plan().to_dict()) == set(FIELDS) == set(OTHER)
    check_field(lower_for_ipu, field)
    if OTHER[field][1] == "host":
        assert FIELDS[field] in {CORE, "processes of the host", RATES}


@pytest.mark.parametrize("field", sorted(NEEDED_HERE))
def test_fields_that_need_others_in_tensorflow_are_mapped_with_them(field):
    around, value = NEEDED_HERE[field], OTHER[field][0]
    before, after = lowered(**around), lowered(**{**around, field: value})
    assert (before.refused, after.refused) == ((), ())
    assert after.calls != before.calls
    named = [call for call in after.calls if field in call.field.split(", ")]
    assert {call.name for call in named} & set(FIELDS[field].split(", "))


@pytest.mark.parametrize("field", sorted(set(NEEDED_HERE) - {"pipeline.schedule"}))
def test_and_are_refused_with_the_change_to_make_without_them(field):
    words = refused(**{field: OTHER[field][0]})[field]
    assert "set " in words


def test_no_field_is_ever_set_without_being_named():
    everything = {
        **PIPELINE,
        **REPLICAS,
        "seed": 7,
        "compile.cache_dir": "cache",
        "ipu.weights": "off-chip",
        "ipu.io_tiles": 32,
        "ipu.available_memory_proportion": 0.4,
        "precision.compute": "float16",
        "precision.loss_scale": 8.0,
        "update.clip_norm": 1.0,
    }
    known = set(FIELDS) | {CORE}
    for call in lowered(**everything).calls:
        assert call.field
        assert set(call.field.split(", ")) <= known


def test_steps_per_execution_count_one_replica_and_are_a_multiple_of_accumulation():
    # B = 2, D = 2, A = 4, R = 4 in each of 2 processes: 8 steps of each replica, 64 rows a process.
    settings = {
        "mesh.data": 8,
        "ipu.replicas_per_process": 4,
        "batch.global_batch_size": 64,
        "batch.micro_batch_size": 2,
        "batch.updates_per_call": 2,
    }
    found = lowered(**settings)
    assert found.device_call is not None
    assert found.device_call.host_rows == 64
    assert found.device_call.samples == 128
    assert (found.device_call.ipus, found.device_call.processes) == (4, 2)
    training = calls(**settings)
    assert training["model.compile"] == "=optimizer, loss, steps_per_execution=8"
    # Keras counts the batches of the data set; its steps_per_epoch is divided by the replicas.
    assert training["model.fit"] == "=dataset, shuffle=False"
    assert training["dataset.batch"] == "=2, drop_remainder=True"
    assert "gradient_accumulation_steps_per_replica=4," in training[GRADIENTS]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.case("O-G7")
def test_gradients_are_summed_whatever_the_reduction(reduction):
    # The sum over replicas cannot be turned off, so means over them are the coefficients' part.
    found = calls(**{"update.reduction": reduction})
    assert "gradient_accumulation_reduction_method='sum'" in found[GRADIENTS]
    assert found["loss.reduction"] == "sum"
    assert found["sample_weight"] == "=coefficients"
    pipeline = calls(**PIPELINE, **{"update.reduction": reduction})
    assert "gradient_accumulation_reduction_method='sum'" in pipeline[STAGES]


def test_what_several_replicas_return_is_summed_in_training_and_left_alone_in_inference():
    # Keras for IPU reduces the outputs of predict as it does metrics.
    option = "model.set_replication_options"
    assert calls(**REPLICAS)[option] == "=replicated_metric_reduction_method='SUM'"
    assert calls("inference", **REPLICAS)[option] == "=replicated_metric_reduction_method='NONE'"
    assert option not in {**calls(), **calls("inference")}


def test_losses_of_every_step_are_heard_of_where_a_call_has_several_updates():
    option = "model.set_asynchronous_callbacks"
    assert calls(**{"batch.updates_per_call": 2})[option] == "=asynchronous=True"
    assert option not in calls()


def test_replicas_are_chosen_by_the_number_of_ipus_and_never_set():
    four = calls(**{**PIPELINE, "mesh.data": 4, "ipu.replicas_per_process": 4})
    assert four["config.auto_select_ipus"] == 8  # 4 replicas x 2 stages
    assert not [name for name in four if "replication_factor" in name]
    assert calls()["config.auto_select_ipus"] == 1


@pytest.mark.parametrize(
    ("stages", "given", "needed"), [(1, 2, 1), (2, 4, 2), (3, None, 4), (3, 3, 4), (4, 8, 4)]
)
def test_ipus_of_a_replica_are_the_stages_rounded_up_to_a_power_of_two(stages, given, needed):
    # With 2 IPUs and one stage Keras would train 2 replicas where the plan says 1.
    settings = {
        "mesh.stage": stages,
        "batch.micro_batch_size": 1,
        "batch.global_batch_size": 12,
        "ipu.ipus_per_replica": given,
    }
    assert list(refused(**settings)) == ["ipu.ipus_per_replica"]
    assert refused(**settings)["ipu.ipus_per_replica"].endswith(f"set it to {needed}")
    right = calls(**{**settings, "ipu.ipus_per_replica": needed})
    assert right["config.auto_select_ipus"] == needed


def test_replicas_that_are_no_power_of_two_are_refused():
    settings = {"mesh.data": 3, "ipu.replicas_per_process": 3, "batch.global_batch_size": 48}
    assert "no power of two; use 2 or 4" in refused(**settings)["ipu.replicas_per_process"]


@pytest.mark.parametrize("stages", range(2, 17))
def test_the_overlap_of_distinct_ipus_is_the_stages_or_twice_as_many(stages):
    devices = range(stages)
    assert overlap_length("Interleaved", devices, training=True) == stages
    assert overlap_length("Interleaved", devices, training=False) == stages
    assert overlap_length("Grouped", devices, training=True) == 2 * stages
    assert overlap_length("Grouped", devices, training=False) == stages


@pytest.mark.parametrize(
    ("devices", "overlap"), [([0, 1, 1, 0], 2), ([0, 1, 2, 0], 2), ([0, 1, 2, 3, 3, 2, 1, 0], 4)]
)
def test_the_overlap_of_shared_ipus_is_shorter_than_the_pipeline(devices, overlap):
    assert overlap_length("Interleaved", devices, training=False) == overlap


@pytest.mark.parametrize(
    ("schedule", "name", "right", "wrong"),
    [("1f1b", "Interleaved", 4, 6), ("1f1b", "Interleaved", 12, 2), ("gpipe", "Grouped", 8, 12)],
)
def test_a_pipeline_accumulates_a_multiple_of_its_overlap(schedule, name, right, wrong):
    settings = {
        "mesh.stage": 4,
        "batch.micro_batch_size": 1,
        "pipeline.schedule": schedule,
        "batch.global_batch_size": right,
    }
    found = calls(**settings)
    assert f"pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.{name}" in found[STAGES]
    assert f"gradient_accumulation_steps_per_replica={right}," in found[STAGES]
    assert GRADIENTS not in found
    words = refused(**{**settings, "batch.global_batch_size": wrong})["batch.global_batch_size"]
    assert f"a multiple of {8 if schedule == 'gpipe' else 4} micro-batches" in words
    assert f"got {wrong};" in words


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_inference_does_not_accumulate_and_fills_the_pipeline(schedule):
    settings = {
        "mesh.stage": 4,
        "batch.micro_batch_size": 1,
        "batch.global_batch_size": 16,
        "pipeline.schedule": schedule,
    }
    found = calls("inference", **settings)
    assert found["model.compile"] == "=optimizer, loss, steps_per_execution=4"
    assert set(found) == {"model.compile", "model.predict"}
    assert calls("inference")["model.compile"] == "=optimizer, loss, steps_per_execution=1"


def test_one_micro_batch_an_update_accumulates_nothing():
    assert GRADIENTS not in calls(**{"batch.micro_batch_size": 64})
    settings = {"batch.micro_batch_size": 64, "ipu.optimizer_state": "off-chip"}
    assert "more than one micro-batch" in refused(**settings)["ipu.optimizer_state"]


def test_what_stays_on_chip_is_said_since_the_default_leaves_it_to_the_compiler():
    found = calls()[GRADIENTS]
    assert "offload_weight_update_variables=False" in found
    assert "replicated_optimizer_state_sharding=False" in found
    pipeline = calls(**PIPELINE)[STAGES]
    for name in (
        "offload_weight_update_variables",
        "offload_activations",
        "offload_gradient_accumulation_buffers",
        "replicated_weight_sharding",
        "offload_weights",
        "accumulate_outfeed",
    ):
        assert f"{name}=False" in pipeline


def test_weights_leave_the_chip_only_shared_out_over_replicas():
    found = calls(**PIPELINE, **REPLICAS, **{"ipu.weights": "off-chip"})[STAGES]
    assert "replicated_weight_sharding=True, offload_weights=True" in found
    assert (
        "in parts of replicas" in refused(**PIPELINE, **{"ipu.weights": "off-chip"})["ipu.weights"]
    )


def test_nothing_is_sharded_over_replicas_of_several_processes():
    sharded = {"ipu.replicated_tensor_sharding": True, "ipu.optimizer_state": "off-chip"}
    found = calls(**sharded, **REPLICAS)[GRADIENTS]
    assert "replicated_optimizer_state_sharding=True" in found
    assert "offload_weight_update_variables=True" in found
    words = refused(**sharded, **PROCESSES)["ipu.replicated_tensor_sharding"]
    assert "PopDistStrategy has no sharded tensors" in words
    words = refused(**PIPELINE, **PROCESSES, **{"ipu.weights": "off-chip"})["ipu.weights"]
    assert "PopDistStrategy has no sharded tensors" in words


def test_one_process_and_several_have_strategies_of_their_own():
    # A plain IPUStrategyV1 in several processes would not send the weights.
    one = calls(**REPLICAS)
    assert "ipu.ipu_strategy.IPUStrategyV1" in one
    assert not [name for name in one if "popdist" in name]
    several = calls(**PROCESSES)
    assert "ipu.distributed.popdist_strategy.PopDistStrategy" in several
    assert "ipu.ipu_strategy.IPUStrategyV1" not in several
    assert "config.auto_select_ipus" not in several
    assert several["popdist.tensorflow.set_ipu_config"] == (
        "=config, ipus_per_replica=1, configure_device=True"
    )
    line = "start with poprun --num-instances=2 --num-replicas=4 --ipus-per-replica=1"
    assert line in lowered(**PROCESSES).notes


def test_the_system_is_configured_before_the_strategy_and_the_strategy_before_the_model():
    order = [call.name for call in lowered(**REPLICAS).calls]
    assert order.index("config.auto_select_ipus") < order.index("config.configure_ipu_system")
    assert order.index("config.configure_ipu_system") < order.index(
        "ipu.ipu_strategy.IPUStrategyV1"
    )
    assert order.index("ipu.ipu_strategy.IPUStrategyV1") < order.index("model.compile")


def test_losses_of_the_model_are_counted_as_keras_counts_them():
    def words(**settings):
        (found,) = [note for note in lowered(**settings).notes if "model.losses" in note]
        return found

    # A = 4 micro-batches of one replica; then A = 2 of R = 2, added by both.
    assert "4 time(s) an update" in words()
    assert "multiply them by 1 / 4," in words()
    assert "4 time(s) an update" in words(**REPLICAS)
    # T = 4 replicas: PopDistStrategy divides by them, which leaves A = 1.
    assert "1 time(s) an update" in words(**PROCESSES)
    # Losses that are sums it reports times T.
    reported = [note for note in lowered(**PROCESSES).notes if "means over micro-batches" in note]
    assert "times 1 / 4 they are the loss of an update" in reported[0]
    # Gradients are divided by the scale, so what the coefficients do not scale has to be.
    assert "multiply them by 128.0 / 4," in words(**{"precision.loss_scale": 128.0})
    assert "multiply them by 1 x W / 4," in words(**{"update.reduction": "sum"})


def test_losses_of_replicas_are_summed_for_the_report():
    # The default reports the last replica's.
    assert calls(**REPLICAS)["model.set_replication_options"] == (
        "=replicated_metric_reduction_method='SUM'"
    )
    assert "model.set_replication_options" not in calls()


def test_rates_are_assigned_before_every_call():
    assert calls()["optimizer.learning_rate.assign"] == "=rate"


def test_a_loss_scale_multiplies_coefficients_and_divides_gradients_after_clipping():
    # Keras clips by the global norm first, so the norm has to be scaled too.
    found = calls(**{"precision.loss_scale": 128.0, "update.clip_norm": 0.5})
    assert found["sample_weight"] == "=coefficients * 128.0"
    assert found["optimizer.global_clipnorm"] == 64.0
    assert found["optimizer.gradient_transformers"] == (
        "=[lambda pairs: [(tf.cast(g / 128.0, v.dtype), v) for g, v in pairs]]"
    )
    plain = calls(**{"update.clip_norm": 0.5})
    assert plain["optimizer.global_clipnorm"] == 0.5
    assert "optimizer.gradient_transformers" not in plain


def test_half_precision_sums_in_float32_unless_it_is_asked_for():
    half = {"precision.compute": "float16"}
    # Not "mixed_float16": Keras would add a dynamic loss scale.
    assert calls(**half)["keras.mixed_precision.set_global_policy"] == "float16"
    assert calls(**half)[GRADIENTS].endswith(", dtype=tf.float32")
    assert "tf.cast(g, v.dtype)" in calls(**half)["optimizer.gradient_transformers"]
    assert "gradient_accumulation_dtype=tf.float32" in calls(**half, **PIPELINE)[STAGES]
    sums_in_half = {**half, "precision.reduce": "compute"}
    assert calls(**sums_in_half)[GRADIENTS].endswith(", dtype=tf.float16")
    assert any("may overflow" in note for note in lowered(**sums_in_half).notes)
    assert "dtype" not in calls()[GRADIENTS]


def test_replicas_without_accumulation_sum_in_half_precision_or_are_refused():
    settings = {**REPLICAS, "precision.compute": "float16", "batch.micro_batch_size": 32}
    assert 'set it to "compute"' in refused(**settings)["precision.reduce"]
    assert GRADIENTS not in calls(**{**settings, "precision.reduce": "compute"})


def test_dynamic_loss_scaling_and_bfloat16_are_refused_with_what_works():
    words = refused(**{"precision.loss_scale": "dynamic"})["precision.loss_scale"]
    assert "set it to a number" in words
    assert "no bfloat16" in refused(**{"precision.compute": "bfloat16"})["precision.compute"]


def test_values_of_poplar_options_are_text():
    found = calls(**{"ipu.available_memory_proportion": 0.4, "ipu.partials_type": "float16"})
    options = {"partialsType": "half", "availableMemoryProportion": "0.4"}
    assert found["config.convolutions.poplar_options"] == options
    assert found["config.matmuls.poplar_options"] == options
    assert calls()["config.matmuls.poplar_options"] == {"partialsType": "float"}


def test_stochastic_rounding_is_an_enum_and_off_unless_asked_for():
    name = "config.floating_point_behaviour.esr"
    assert calls()[name] == "=ipu.config.StochasticRoundingBehaviour.OFF"
    on = {"ipu.stochastic_rounding": True}
    assert calls(**on)[name] == "=ipu.config.StochasticRoundingBehaviour.ON"
    assert any("evaluation rounds at random" in note for note in lowered(**on).notes)


def test_flags_are_set_together_and_only_if_there_are_some():
    assert "os.environ.update" not in calls()
    found = lowered(**{"compile.cache_dir": "a/cache", "ipu.synthetic_data": True})
    assert found.calls[0].name == "os.environ.update"
    assert found.calls[0].value == {
        "TF_POPLAR_FLAGS": "--executable_cache_path=a/cache --synthetic_data_categories=infeed "
        "--synthetic_data_initializer=random"
    }
    assert any("before TensorFlow is imported" in note for note in found.notes)
    for folder in ("my cache", "cache "):
        words = refused(**{"compile.cache_dir": folder})["compile.cache_dir"]
        assert "cut at white space" in words


def test_compiling_without_a_device_names_its_version_and_needs_a_folder():
    offline = {"ipu.offline_compile": True}
    assert "set compile.cache_dir" in refused(**offline)["ipu.offline_compile"]
    found = calls(**offline, **{"compile.cache_dir": "cache"})
    assert found["config.device_connection.type"] == "=ipu.config.DeviceConnectionType.PRE_COMPILE"
    assert found["config.device_connection.version"] == "ipu2"
    assert found["config.device_connection.enable_remote_buffers"] is False
    assert any('"ipu21"' in note for note in lowered(**offline).notes)
    off_chip = {"compile.cache_dir": "cache", "ipu.optimizer_state": "off-chip"}
    remote = calls(**offline, **off_chip)
    assert remote["config.device_connection.enable_remote_buffers"] is True


def test_a_queue_prefetches_up_to_255_batches():
    found = calls(**{"ipu.prefetch_depth": 255})
    assert found["model.set_infeed_queue_options"] == "=prefetch_depth=255"
    words = refused(**{"ipu.prefetch_depth": 256})["ipu.prefetch_depth"]
    assert "a queue takes 1 to 255" in words


def test_io_tiles_also_hold_operations():
    found = calls(**{"ipu.io_tiles": 32})
    assert found["config.io_tiles.num_io_tiles"] == 32
    assert found["config.io_tiles.place_ops_on_io_tiles"] is True


def test_pipelines_assign_stages_and_warn_of_moving_statistics():
    found = calls(**PIPELINE)
    assert found["model.set_pipeline_stage_assignment"] == "=stages"
    assert any("moving statistics" in note for note in lowered(**PIPELINE).notes)
    assert not any("moving statistics" in note for note in lowered().notes)


def test_the_adapter_lowers_for_ipu_and_imports_nothing_for_it():
    assert lower(Plan().replace(BASE), "ipu").calls
    code = (
        "import sys; from unified_ipu.plan import Plan; "
        "from unified_ipu.adapter import load_adapter; "
        "load_adapter('tensorflow').lower(Plan(), 'ipu'); "
        "print('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"

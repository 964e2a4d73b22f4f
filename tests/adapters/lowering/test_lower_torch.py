"""PopTorch's options from a plan, against what its documents and sources say; no SDK is needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Dict

import pytest

from unified_ipu.plan import Plan
from unified_ipu_torch.lower import flatten, lower
from unified_ipu_torch.lower_ipu import CORE, FIELDS, HOST, lower_for_ipu

BASE = {"batch.remainder": "pad", "mesh.data": 1}


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


# Another value than the default for every field, and whether it shows: in the calls, as a
# refusal, or nowhere, since it has a meaning on the host only.
OTHER = {
    "target": ("ipu", "host"),
    "seed": (7, "call"),
    "deterministic": (True, "note"),
    "mesh.data": (2, "call"),
    "mesh.stage": (2, "call"),
    "batch.global_batch_size": (128, "call"),
    "batch.micro_batch_size": (8, "call"),
    "batch.accumulation_per_replica": (4, "same"),
    "batch.updates_per_call": (5, "call"),
    "batch.remainder": ("exact", "refused"),
    "update.reduction": ("sum", "note"),
    "update.lr_scaling": ("linear", "host"),
    "update.warmup_updates": (5, "host"),
    "update.base_global_batch_size": (32, "host"),
    "update.clip_norm": (1.0, "call"),
    "precision.compute": ("float16", "call"),
    "precision.reduce": ("compute", "half"),
    "precision.loss_scale": (128.0, "call"),
    "comms.transport": ("c10d", "host"),
    "comms.algorithm": ("ring", "host"),
    "comms.bucket_bytes": (1 << 20, "host"),
    "comms.compression": ("float16", "refused"),
    "comms.overlap": ("none", "host"),
    "comms.stall_report_seconds": (5.0, "host"),
    "comms.timeout_seconds": (60.0, "host"),
    "pipeline.schedule": ("gpipe", "stages"),
    "pipeline.split": ("layer3", "stages"),
    "data.shuffle": (False, "host"),
    "data.isolate": ("never", "host"),
    "data.workers": (2, "host"),
    "data.python": ("python3.8", "host"),
    "compile.cache_dir": ("cache", "call"),
    "compile.optimization_level": (3, "refused"),
    "ipu.ipus_per_replica": (2, "shape"),
    "ipu.replicas_per_process": (2, "call"),
    "ipu.partials_type": ("float16", "call"),
    "ipu.stochastic_rounding": (True, "call"),
    "ipu.available_memory_proportion": (0.4, "call"),
    "ipu.weights": ("off-chip", "call"),
    "ipu.optimizer_state": ("off-chip", "call"),
    "ipu.activations": ("off-chip", "call"),
    "ipu.accumulators": ("off-chip", "call"),
    "ipu.replicated_tensor_sharding": (True, "replicas"),
    "ipu.prefetch_depth": (3, "call"),
    "ipu.io_tiles": (32, "call"),
    "ipu.synthetic_data": (True, "call"),
    "ipu.offline_compile": (True, "call"),
}


def test_every_field_of_the_plan_has_its_place():
    fields = set(flatten(Plan().to_dict()))
    assert fields == set(FIELDS)
    assert fields == set(OTHER)


NEEDED: Dict[str, Dict[str, Any]] = {  # what else a field needs to have a meaning
    "mesh.data": {"ipu.replicas_per_process": 2},
    "mesh.stage": {"batch.micro_batch_size": 4},
    "update.lr_scaling": {"update.base_global_batch_size": 32},
    "ipu.replicas_per_process": {"mesh.data": 2},
    "half": {"precision.compute": "float16"},
    "stages": {"mesh.stage": 2, "batch.micro_batch_size": 4},
    "replicas": {"mesh.data": 2, "ipu.replicas_per_process": 2},
}


@pytest.mark.parametrize("field", sorted(OTHER))
def test_every_field_is_mapped_or_refused_or_of_the_host(field):
    value, where = OTHER[field]
    around = {**NEEDED.get(field, {}), **NEEDED.get(where, {})}
    before = lowered(**around)
    after = lowered(**{**around, field: value})
    if where in {"refused", "stages"}:
        assert field not in dict(before.refused)
        assert field in dict(after.refused)
    elif where in {"call", "half", "replicas"}:
        assert after.refused == ()
        assert after.calls != before.calls
    elif where == "note":
        assert after.notes != before.notes
    elif where == "shape":
        assert after.device_call != before.device_call
    else:
        assert (after.calls, after.refused) == (before.calls, before.refused)
        assert where == "same" or FIELDS[field] in {CORE, HOST, "poptorch_model.setOptimizer"}


def test_one_call_takes_what_poptorchs_combined_batch_size_says():
    # batch_size * D * R * A of one process: 2 * 2 * 4 * 4
    found = lowered(
        **{
            "mesh.data": 8,
            "ipu.replicas_per_process": 4,
            "batch.global_batch_size": 64,
            "batch.micro_batch_size": 2,
            "batch.updates_per_call": 2,
        }
    )
    assert found.device_call is not None
    assert found.device_call.host_rows == 64
    assert found.device_call.samples == 128
    assert (found.device_call.ipus, found.device_call.processes) == (4, 2)
    training = {c.name: c.value for c in found.calls if c.program == "training"}
    assert training["options.replicationFactor"] == 4  # of this process, not of the world
    assert training["options.Distributed.configureProcessId"] == "=process_id, 2"
    assert training["options.Training.gradientAccumulation"] == 4
    assert training["options.deviceIterations"] == 2


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.case("O-G7")
def test_gradients_are_summed_whatever_the_reduction(reduction):
    # Mean is PopTorch's default, Sum is PopART's; our loss is divided before.
    name = "options.Training.accumulationAndReplicationReductionType"
    assert calls(**{"update.reduction": reduction})[name] == "=poptorch.ReductionType.Sum"


@pytest.mark.parametrize(("stages", "least"), [(2, 3), (4, 7)])
def test_a_training_pipeline_needs_2f_minus_1_micro_batches(stages, least):
    settings = {"mesh.stage": stages, "batch.micro_batch_size": 1}
    found = refused(**{**settings, "batch.global_batch_size": least - 1})
    assert f"at least {least} micro-batches" in found["batch.global_batch_size"]
    assert "options.setExecutionStrategy" in calls(**{**settings, "batch.global_batch_size": least})


def test_inference_has_no_accumulation_and_a_pipeline_long_enough_to_fill():
    settings = {"mesh.stage": 4, "batch.micro_batch_size": 1, "ipu.stochastic_rounding": True}
    inference = calls("inference", **settings)
    assert inference["options.Training.gradientAccumulation"] == 1
    assert inference["options.deviceIterations"] == 4
    assert inference["options.outputMode"] == "=poptorch.OutputMode.All"
    assert inference["options.Precision.enableStochasticRounding"] is False
    assert calls(**settings)["options.Precision.enableStochasticRounding"] is True


@pytest.mark.parametrize(("replicas", "ipus"), [(3, 1), (1, 3)])
def test_ipus_that_are_no_power_of_two_are_refused(replicas, ipus):
    found = refused(
        **{
            "mesh.data": replicas,
            "ipu.replicas_per_process": replicas,
            "ipu.ipus_per_replica": ipus,
            "batch.global_batch_size": 48,
        }
    )
    assert "no power of two; use 2 or 4" in found["ipu.replicas_per_process"]


def test_more_than_64_ipus_in_one_process_are_refused():
    found = refused(**{"ipu.ipus_per_replica": 128})
    assert "PopTorch takes 64" in found["ipu.replicas_per_process"]


def test_a_changed_rate_is_sent_by_set_optimizer():
    assert calls()["poptorch_model.setOptimizer"] == "=optimizer"


def test_buffers_of_replicas_stay_their_own():
    # True, the default, expects a broadcast that PopTorch does not have.
    two = {"mesh.data": 2, "ipu.replicas_per_process": 2}
    assert calls(**two)["options.broadcastBuffers"] is False
    assert "options.broadcastBuffers" not in calls()


def test_half_precision_sums_in_float32_unless_it_is_asked_for():
    half = {"precision.compute": "float16"}
    assert calls(**half)["optimizer.accum_type"] == "=torch.float32"
    assert "model.half" in calls(**half)
    found = lowered(**half, **{"precision.reduce": "compute"})
    assert "=torch.float16" in {call.value for call in found.calls}
    assert any("may overflow" in note for note in found.notes)


def test_dynamic_loss_scaling_and_bfloat16_are_refused_with_what_works():
    assert (
        "set it to a number"
        in refused(**{"precision.loss_scale": "dynamic"})["precision.loss_scale"]
    )
    assert "no bfloat16" in refused(**{"precision.compute": "bfloat16"})["precision.compute"]


def test_sharding_needs_replicas_in_the_process():
    sharded = {"ipu.replicated_tensor_sharding": True}
    assert "ipu.replicated_tensor_sharding" in refused(**sharded)
    two = calls(**sharded, **{"mesh.data": 2, "ipu.replicas_per_process": 2})
    location = two["options.TensorLocations.setOptimizerLocation"]
    assert "useReplicatedTensorSharding(True)" in location


def test_memory_proportions_name_every_ipu_of_the_pipeline():
    settings = {"mesh.stage": 2, "batch.micro_batch_size": 4}
    found = calls(**settings, **{"ipu.available_memory_proportion": 0.4})
    assert found["options.setAvailableMemoryProportion"] == {"IPU0": 0.4, "IPU1": 0.4}


def test_the_adapter_lowers_for_ipu_and_imports_nothing_for_it():
    assert lower(Plan().replace(BASE), "ipu").calls
    code = (
        "import sys; from unified_ipu.plan import Plan; "
        "from unified_ipu.adapter import load_adapter; load_adapter('torch').lower(Plan(), 'ipu'); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"

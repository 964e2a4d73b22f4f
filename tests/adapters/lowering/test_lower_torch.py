"""PopTorch's options from a plan, against what its documents and sources say; no SDK is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.adapters.lowering.walk import BASE, OTHER, check_field, fields
from unified_ipu.plan import Plan
from unified_ipu_torch.lower import lower
from unified_ipu_torch.lower_ipu import CORE, FIELDS, lower_for_ipu


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


@pytest.mark.parametrize("field", sorted(OTHER))
def test_every_field_is_mapped_or_refused_or_of_the_host(field):
    assert fields(Plan().to_dict()) == set(FIELDS) == set(OTHER)
    check_field(lower_for_ipu, field)
    if OTHER[field][1] == "host":
        assert FIELDS[field] in {CORE, "processes of the host", "poptorch_model.setOptimizer"}


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

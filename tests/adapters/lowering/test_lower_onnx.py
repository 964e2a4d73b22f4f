"""PopART's settings from a plan, against what its sources say; no SDK is needed."""

from __future__ import annotations

import pytest

from tests.adapters.lowering.walk import BASE, OTHER, check_field, fields
from unified_ipu.plan import Plan
from unified_ipu_onnx.lower import lower
from unified_ipu_onnx.lower_ipu import CORE, FIELDS, lower_for_ipu


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
        assert FIELDS[field] in {CORE, "processes of the host", "session.updateOptimizerFromHost"}


def test_one_run_takes_batches_times_accumulation_times_local_replicas():
    # elements of a micro-batch x batchesPerStep x accumulationFactor x replicatedGraphCount
    found = lowered(
        **{
            "mesh.data": 8,
            "ipu.replicas_per_process": 4,
            "batch.global_batch_size": 64,
            "batch.micro_batch_size": 2,
            "batch.updates_per_call": 8,
        }
    )
    assert found.device_call is not None
    assert found.device_call.host_rows == 2 * 8 * 4 * 4
    assert found.device_call.samples == 512
    training = {c.name: c.value for c in found.calls if c.program == "training"}
    assert training["popart.DataFlow.batchesPerStep"] == 8
    assert training["opts.accumulationFactor"] == 4
    assert training["opts.enableGradientAccumulation"] is True
    assert training["opts.replicatedGraphCount"] == 4  # the local count
    assert training["opts.globalReplicationFactor"] == 8
    assert training["opts.globalReplicaOffset"] == "=process_id * 4"
    assert training["opts.enableDistributedReplicatedGraphs"] is True


def test_distributed_graphs_of_one_replica_a_process_do_not_switch_replication_on():
    # With distributed graphs, enableReplicatedGraphs demands a local factor above 1.
    found = calls(**{"mesh.data": 4})
    assert found["opts.enableReplicatedGraphs"] is False
    assert found["opts.enableDistributedReplicatedGraphs"] is True


def test_accumulation_is_switched_on_with_its_factor():
    assert calls(**{"batch.micro_batch_size": 64})["opts.enableGradientAccumulation"] is False
    found = calls(**{"batch.micro_batch_size": 16})
    assert (found["opts.enableGradientAccumulation"], found["opts.accumulationFactor"]) == (True, 4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.case("O-G7")
def test_gradients_are_summed_whatever_the_reduction(reduction):
    found = calls(**{"update.reduction": reduction})
    name = "opts.accumulationAndReplicationReductionType"
    assert found[name] == "=popart.ReductionType.Sum"


@pytest.mark.parametrize(("stages", "size", "is_refused"), [(4, 6, True), (4, 7, False)])
def test_a_pipeline_needs_as_many_micro_batches_as_stages_with_those_of_backward(
    stages, size, is_refused
):
    settings = {
        "mesh.stage": stages,
        "batch.micro_batch_size": 1,
        "batch.global_batch_size": size,
    }
    found = lowered(**settings)
    assert ("batch.global_batch_size" in dict(found.refused)) is is_refused
    if is_refused:
        assert "with backward 7" in dict(found.refused)["batch.global_batch_size"]


def test_the_loss_of_every_update_comes_back_and_velocities_are_kept_apart():
    found = calls()
    assert found["popart.DataFlow.anchorReturnType"] == '=popart.AnchorReturnType("All")'
    separate = "=popart.SGDAccumulatorAndMomentum.Separate"
    assert found["optimizer.accumulatorAndMomentum"] == separate


def test_inference_has_the_types_and_streams_of_training_and_weights_that_can_be_sent():
    found = calls("inference", **{"ipu.partials_type": "float16", "compile.cache_dir": "here"})
    assert found["opts.partialsTypeMatMuls"] == "half"
    assert found["opts.cachePath"] == "here"
    assert found["opts.constantWeights"] is False


def test_inference_does_not_accumulate():
    found = calls("inference", **{"ipu.stochastic_rounding": True})
    assert found["opts.enableGradientAccumulation"] is False
    assert found["opts.accumulationFactor"] == 1
    assert found["popart.DataFlow.anchorReturnType"] == '=popart.AnchorReturnType("All")'
    assert found["opts.enableStochasticRounding"] is False


def test_devices_are_acquired_in_powers_of_two():
    found = refused(**{"ipu.ipus_per_replica": 3})
    assert "no power of two; use 2 or 4" in found["ipu.replicas_per_process"]
    two = calls(**{"ipu.ipus_per_replica": 2})
    assert two["DeviceManager.acquireAvailableDevice"] == 2
    offline = calls(**{"ipu.ipus_per_replica": 2, "ipu.offline_compile": True})
    assert offline["DeviceManager.createOfflineIPUDevice"] == {"numIPUs": 2}


def test_rates_are_sent_and_the_loss_scale_is_no_constant():
    found = calls(**{"precision.loss_scale": 128.0})
    assert found["session.updateOptimizerFromHost"] == "=optimizer(rate)"
    assert found["optimizer.lossScaling"] == (128.0, False)


def test_the_opset_and_the_order_of_imports_are_said():
    assert "the model's opset must be at most 11; import popart before onnx" in lowered().notes


def test_sharding_over_processes_stays_inside_each():
    sharded = {
        "ipu.replicated_tensor_sharding": True,
        "mesh.data": 4,
        "ipu.replicas_per_process": 2,
    }
    place = calls(**sharded)["opts.optimizerStateTensorLocationSettings"]
    assert "popart.CommGroup(popart.CommGroupType.Consecutive, 2)" in place
    alone = calls(**{**sharded, "mesh.data": 2})["opts.optimizerStateTensorLocationSettings"]
    assert "CommGroup" not in alone
    assert "ReplicatedTensorSharding.On" in alone


def test_half_precision_sums_in_float32_unless_it_is_asked_for():
    half = {"precision.compute": "float16"}
    assert calls(**half)["optimizer.accumType"] == "=popart.DataType.FLOAT"
    found = calls(**half, **{"precision.reduce": "compute"})
    assert found["optimizer.accumType"] == "=popart.DataType.FLOAT16"
    assert "popart.GraphTransformer.convertFloatsToHalfs" in found


def test_what_popart_cannot_do_is_refused_with_what_works():
    assert "no bfloat16" in refused(**{"precision.compute": "bfloat16"})["precision.compute"]
    words = refused(**{"precision.loss_scale": "dynamic"})["precision.loss_scale"]
    assert "set it to a number" in words


def test_the_adapter_lowers_for_ipu():
    assert lower(Plan().replace(BASE), "ipu").adapter == "onnx"

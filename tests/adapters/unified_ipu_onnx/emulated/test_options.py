"""Options of a session: all names, none else, and the rules between them."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from tests.adapters.unified_ipu_onnx.emulated.sessions import Linear, accumulating
from unified_ipu_onnx.emulated import popart
from unified_ipu_onnx.emulated.popart import log
from unified_ipu_onnx.emulated.popart.session_options import MEANING, WITHOUT_EFFECT


@pytest.mark.parametrize("name", sorted({**MEANING, **WITHOUT_EFFECT}))
def test_every_option_can_be_read_and_set_to_what_it_is(name):
    options = popart.SessionOptions()
    value = getattr(options, name)
    setattr(options, name, value)
    assert getattr(options, name) == {**MEANING, **WITHOUT_EFFECT}[name]


@pytest.mark.parametrize(
    "name", ["globalReplicatedGraphCount", "gradientAccumulationFactor", "autodiffSettings"]
)
def test_names_that_do_not_exist_are_attribute_errors(name):
    with pytest.raises(AttributeError, match=name):
        setattr(popart.SessionOptions(), name, 2)
    with pytest.raises(AttributeError, match=name):
        getattr(popart.SessionOptions(), name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accumulationFactor", 2.0),
        ("accumulationFactor", True),
        ("enablePipelining", "yes"),
        ("accumulationAndReplicationReductionType", "Sum"),
        ("partialsTypeMatMuls", 1),
    ],
)
def test_other_types_are_type_errors(name, value):
    with pytest.raises(TypeError, match=name):
        setattr(popart.SessionOptions(), name, value)


def test_no_two_objects_share_a_dict_or_a_structure():
    one, other = popart.SessionOptions(), popart.SessionOptions()
    one.engineOptions["a"] = "b"
    one.automaticLossScalingSettings.enabled = True
    assert other.engineOptions == {}
    assert other.automaticLossScalingSettings.enabled is False


def test_enumerations_are_integers_that_poptorch_scripts_hand_over():
    schedule = popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
    assert int(schedule) == 3
    assert int(popart.RecomputationType.RecomputeAll) == 4
    settings = popart.AccumulateOuterFragmentSettings(schedule, [0])
    options = popart.SessionOptions()
    options.accumulateOuterFragmentSettings = settings
    assert options.accumulateOuterFragmentSettings.excludedVirtualGraphs == [0]


def test_old_names_lead_to_the_new_ones():
    options = popart.SessionOptions()
    options.defaultPrefetchBufferingDepth = 3
    assert options.defaultBufferingDepth == options.defaultPrefetchBufferingDepth == 3


def test_replicas_over_all_processes_are_counted_by_what_is_switched_on():
    options = popart.SessionOptions()
    options.replicatedGraphCount, options.globalReplicationFactor = 2, 8
    assert options.getGlobalReplicationFactor() == 1
    options.enableReplicatedGraphs = True
    assert options.getGlobalReplicationFactor() == 2
    options.enableDistributedReplicatedGraphs = True
    assert options.getGlobalReplicationFactor() == 8


def test_places_of_tensors_take_the_arguments_of_the_sdk():
    on, off = popart.ReplicatedTensorSharding.On, popart.TensorStorage.OffChip
    group = popart.CommGroup(popart.CommGroupType.Consecutive, 2)
    place = popart.TensorLocation(off, on, group)
    assert (place.storage, place.replicatedTensorSharding, place.shardingDomain) == (off, on, group)
    settings = popart.TensorLocationSettings(off)
    assert settings.location.storage is off
    assert settings.minElementsForReplicatedTensorSharding == 8192
    tiles = popart.TensorLocation(off, popart.TileSet.IO, popart.TileSet.Compute, on)
    assert (tiles.loadTileSet, tiles.replicatedTensorSharding) == (popart.TileSet.IO, on)


def test_what_has_no_effect_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(log, "_said", set())
    with caplog.at_level(logging.INFO, "popart"):
        for _ in range(2):
            Linear(1).session(numIOTiles=32)
    assert [r.getMessage() for r in caplog.records] == [
        "SessionOptions.numIOTiles = 32 has no effect without a device"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulationFactor": 2}, "enableGradientAccumulation is False"),
        ({"enableReplicatedGraphs": True, "replicatedGraphCount": 2}, "must be divisible"),
        ({"enablePipelining": True}, "Pipelining requires more than 1 IPU"),
        (
            {
                "enablePipelining": True,
                "virtualGraphMode": popart.VirtualGraphMode.Auto,
                "ipus": 2,
                **accumulating(2),
            },
            r"at least the number of pipeline stages \(3\)",
        ),
        (
            {"enableDistributedReplicatedGraphs": True, "globalReplicationFactor": 2},
            "nothing links",
        ),
        (
            {"enableDistributedReplicatedGraphs": True, "enableReplicatedGraphs": True},
            "needs a local replicatedGraphCount above 1",
        ),
        (
            {"accumulationAndReplicationReductionType": popart.ReductionType.NoReduction},
            "must be Sum or Mean",
        ),
        ({"customCodelets": ["a.cpp"]}, "SessionOptions.customCodelets"),
        ({"enableExplicitMainLoops": True}, "needs useHostCopyOps"),
        (
            {"automaticLossScalingSettings": popart.AutomaticLossScalingSettings(enabled=True)},
            "automaticLossScalingSettings",
        ),
    ],
)
def test_options_that_contradict_one_another_are_refused(options, words):
    with pytest.raises(popart.popart_exception, match=words):
        Linear(1).session(**options)


def test_inference_does_not_accumulate():
    model = Linear(1)
    options = popart.SessionOptions()
    options.enableGradientAccumulation, options.accumulationFactor = True, 2
    device = popart.DeviceManager().createCpuDevice()
    with pytest.raises(popart.popart_exception, match="only available when training"):
        popart.InferenceSession(
            model.builder.getModelProto(),
            popart.DataFlow(1, [model.y]),
            device,
            userOptions=options,
        )


@pytest.mark.parametrize(
    ("mode", "zero"),
    [(popart.SyntheticDataMode.RandomNormal, False), (popart.SyntheticDataMode.Zeros, True)],
)
def test_synthetic_data_ignores_what_the_host_feeds_and_brings_no_weights_back(mode, zero):
    model = Linear(4)
    session = model.session(anchors=["Gradient___w"], syntheticDataMode=mode)
    found = model.run(session, [1, 2, 3, 4])["Gradient___w"].item()
    assert found != 30.0
    assert (found == 0.0) is zero
    assert model.weight(session) == 0.0


def test_devices_come_in_powers_of_two():
    manager = popart.DeviceManager()
    assert manager.acquireAvailableDevice(4).numIpus == 4
    assert manager.tryAcquireAvailableDevice(2) is not None
    with pytest.raises(popart.popart_exception, match="must be a power of two"):
        manager.acquireAvailableDevice(3)
    with pytest.raises(popart.popart_exception, match="unknown device option 'numIpus'"):
        manager.createIpuModelDevice({"numIpus": 1})


def test_a_device_that_was_left_does_not_run():
    model = Linear(1)
    session = model.session()
    with session._device as device:
        model.run(session, [1])
    with pytest.raises(popart.popart_exception, match="was detached"):
        model.run(session, [1])
    device.attach()
    model.run(session, [1])
    assert model.weight(session) == -2.0


def test_a_device_to_compile_for_does_not_run():
    model = Linear(1)
    device = popart.DeviceManager().createOfflineIPUDevice({"numIPUs": 1})
    session = popart.TrainingSession(
        model.builder.getModelProto(), popart.DataFlow(1, []), model.loss, popart.SGD({}), device
    )
    session.prepareDevice()
    session.weightsFromHost()
    ones = np.ones((1, 1), np.float32)
    with pytest.raises(popart.popart_exception, match="not configured for execution"):
        session.run(popart.PyStepIO({model.x: ones, model.t: ones}, {}))

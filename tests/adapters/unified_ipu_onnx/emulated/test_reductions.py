"""What becomes of the gradients of an update, in numbers."""

from __future__ import annotations

import pytest

from tests.adapters.unified_ipu_onnx.emulated.sessions import Linear, accumulating, array, replicas
from unified_ipu_onnx.emulated import popart

SUM, MEAN = popart.ReductionType.Sum, popart.ReductionType.Mean
SIXTEEN = range(1, 17)  # squares add up to 1496

# (rows, accumulation, replicas, reduction in the loss, of the session, the weight after lr = 1)
SPLITS = (
    (16, 1, 1, SUM, SUM, -1496.0),
    (2, 4, 2, SUM, SUM, -1496.0),
    (16, 1, 1, MEAN, SUM, -93.5),
    (2, 4, 2, MEAN, SUM, -748.0),
    (4, 2, 2, MEAN, SUM, -374.0),
    (2, 4, 2, MEAN, MEAN, -93.5),
    (4, 4, 1, MEAN, MEAN, -93.5),
    (2, 4, 2, SUM, MEAN, -187.0),
)


@pytest.mark.parametrize(("rows", "accumulation", "count", "loss", "reduction", "after"), SPLITS)
def test_a_sum_depends_on_the_split_of_a_mean_loss_and_a_mean_does_not(
    rows, accumulation, count, loss, reduction, after
):
    model = Linear(rows, loss)
    session = model.session(
        accumulationAndReplicationReductionType=reduction,
        **accumulating(accumulation),
        **replicas(count),
    )
    model.run(session, SIXTEEN)
    assert model.weight(session) == pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize("strategy", popart.MeanReductionStrategy)
def test_both_strategies_of_the_mean_give_the_mean(strategy):
    model = Linear(2, SUM)
    session = model.session(
        accumulationAndReplicationReductionType=MEAN,
        meanAccumulationAndReplicationReductionStrategy=strategy,
        **accumulating(8),
    )
    model.run(session, SIXTEEN)
    assert model.weight(session) == pytest.approx(-187.0, rel=1e-6)


def test_updates_of_a_step_follow_one_another_and_take_their_own_rows():
    model = Linear(2, SUM)
    session = model.session(updates=4, anchors=["Gradient___w"], **accumulating(2))
    found = model.run(session, SIXTEEN)["Gradient___w"]
    assert found.reshape(-1).tolist() == [5, 25, 61, 113, 181, 265, 365, 481]
    assert model.weight(session) == -1496.0


def test_replicas_take_turns_micro_batch_by_micro_batch():
    model = Linear(1, SUM)
    session = model.session(anchors=["Gradient___w"], **accumulating(2), **replicas(2))
    found = model.run(session, [1, 2, 3, 4])["Gradient___w"]
    assert found.shape == (2, 2, 1, 1)  # accumulation, replica
    assert found[0].reshape(-1).tolist() == [1, 4]
    assert found[1].reshape(-1).tolist() == [9, 16]


def test_a_mean_over_replicas_divides_the_anchored_gradient_too():
    model = Linear(1, SUM)
    session = model.session(
        anchors=["Gradient___w"], accumulationAndReplicationReductionType=MEAN, **replicas(2)
    )
    assert model.run(session, [1, 2])["Gradient___w"].reshape(-1).tolist() == [0.5, 2.0]


def test_a_loss_scale_shows_in_gradients_and_not_in_the_update():
    model = Linear(1, SUM)
    values = {"defaultLearningRate": (1.0, False), "lossScaling": (8.0, False)}
    session = model.session(anchors=["Gradient___w"], optimizer=popart.SGD(values))
    assert model.run(session, [3])["Gradient___w"].item() == 72.0
    assert model.weight(session) == -9.0


def test_an_input_that_replicas_share_is_fed_once():
    builder = popart.Builder()
    shared = popart.InputSettings(popart.ReplicatedStreamMode.Broadcast)
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [1]), shared, "x")
    own = builder.addInputTensor("FLOAT", [1], "own")
    y = builder.aiOnnx.add([x, own])
    options = popart.SessionOptions()
    options.enableReplicatedGraphs, options.replicatedGraphCount = True, 2
    session = popart.InferenceSession(
        builder.getModelProto(),
        popart.DataFlow(2, [y]),
        popart.DeviceManager().acquireAvailableDevice(2),
        userOptions=options,
    )
    session.prepareDevice()
    anchors = session.initAnchorArrays()
    feeds = {x: array(10, 20), own: array(1, 2, 3, 4)}
    session.run(popart.PyStepIO(feeds, anchors))
    assert anchors[y].tolist() == [[[11], [12]], [[23], [24]]]

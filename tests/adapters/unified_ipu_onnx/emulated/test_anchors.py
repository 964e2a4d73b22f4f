"""What a step gives back, and in which shape."""

from __future__ import annotations

import numpy as np
import pytest

from tests.adapters.unified_ipu_onnx.emulated.sessions import Linear, accumulating, replicas
from unified_ipu_onnx.emulated import popart


def _shapes(updates, accumulation, count, kind, shape=(16, 10), trains=True):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", list(shape)))
    w = builder.addInitializedInputTensor(np.ones((1,), np.float32))
    y = builder.aiOnnx.mul([x, w])
    loss = builder.aiGraphcore.identityloss([y])
    options = popart.SessionOptions()
    for name, value in {**accumulating(accumulation), **replicas(count)}.items():
        if name != "ipus":
            setattr(options, name, value)
    device = popart.DeviceManager().acquireAvailableDevice(count)
    flow = popart.DataFlow(updates, {y: kind})
    model = builder.getModelProto()
    session = popart.TrainingSession(
        model, flow, loss, popart.ConstSGD(0.1), device, userOptions=options
    )
    session.prepareDevice()
    return session.initAnchorArrays()[y].shape


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (popart.AnchorReturnType("All"), (8, 4, 2, 16, 10)),
        (popart.AnchorReturnType("FINAL"), (2, 16, 10)),
        (popart.AnchorReturnType("sum"), (2, 16, 10)),
    ],
)
def test_arrays_have_an_axis_for_updates_micro_batches_and_replicas(kind, shape):
    assert _shapes(8, 4, 2, kind) == shape


def test_axes_of_one_are_dropped_but_not_those_of_the_tensor():
    assert _shapes(1, 1, 1, popart.AnchorReturnType("All"), shape=(1, 10)) == (1, 10)
    assert _shapes(8, 1, 2, popart.AnchorReturnType("EveryN", 4)) == (2, 2, 16, 10)


def test_values_come_from_the_last_micro_batch_their_sum_or_every_nth_update():
    model = Linear(1)
    returns = {"All": [1, 4, 9, 16], "Final": [16], "Sum": [30]}
    for kind, values in returns.items():
        session = model.session(updates=4, anchors=["Gradient___w"], returns=kind)
        assert model.run(session, [1, 2, 3, 4])["Gradient___w"].reshape(-1).tolist() == values
    every = {"Gradient___w": popart.AnchorReturnType("EveryN", 2)}
    session = model.session(updates=4, anchors=every)
    assert model.run(session, [1, 2, 3, 4])["Gradient___w"].reshape(-1).tolist() == [4, 16]


def test_a_sum_is_of_each_replica_over_all_its_micro_batches():
    model = Linear(1)
    options = {**accumulating(2), **replicas(2)}
    session = model.session(updates=2, anchors=["Gradient___w"], returns="Sum", **options)
    found = model.run(session, [1, 2, 3, 4, 5, 6, 7, 8])["Gradient___w"]
    assert found.reshape(-1).tolist() == [1 + 9 + 25 + 49, 4 + 16 + 36 + 64]


def test_arrays_are_filled_in_place():
    model = Linear(1)
    session = model.session(anchors=[model.y])
    anchors = session.initAnchorArrays()
    held = anchors[model.y]
    ones = np.ones((1, 1), np.float32)
    session.run(popart.PyStepIO({model.x: ones, model.t: ones}, anchors))
    assert held.item() == 0.0
    session.run(popart.PyStepIO({model.x: ones, model.t: ones}, anchors))
    assert held.item() == -1.0


def test_inputs_have_gradients_too():
    model = Linear(2, start=3.0)
    session = model.session(anchors=[f"Gradient___{model.x}"])
    found = model.run(session, [1, 2])[f"Gradient___{model.x}"]
    assert found.reshape(-1).tolist() == [3.0, 6.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: popart.AnchorReturnType("EveryN"), "Must specify return period"),
        (lambda: popart.AnchorReturnType("EveryN", 0), "greater than zero"),
        (lambda: popart.AnchorReturnType("All", 2), "should not be supplied"),
        (lambda: popart.AnchorReturnType("Some"), "Invalid anchor return type"),
        (lambda: popart.DataFlow(0, {}), "must be greater than zero"),
        (lambda: popart.DataFlow(4, {"y": popart.AnchorReturnType("EveryN", 3)}), "a factor of"),
        (lambda: popart.DataFlow(2, {"y": popart.AnchorReturnType("EveryN", 4)}), "must be <="),
        (lambda: popart.DataFlow(1, {}).art("y"), "Tensor y is not an anchor"),
    ],
)
def test_wrong_periods_and_names_are_refused_when_they_are_said(make, words):
    with pytest.raises(popart.popart_exception, match=words):
        make()


@pytest.mark.parametrize(("period", "numbers"), [(2, [2, 4, 6, 8]), (4, [4, 8])])
def test_a_period_counts_micro_batches_and_not_updates(period, numbers):
    model = Linear(1)
    every = {"Gradient___w": popart.AnchorReturnType("EveryN", period)}
    session = model.session(updates=4, anchors=every, **accumulating(2))
    found = model.run(session, range(1, 9))["Gradient___w"]
    assert found.reshape(-1).tolist() == [number**2 for number in numbers]


def test_an_anchor_that_nothing_computes_is_named():
    with pytest.raises(popart.popart_exception, match="No tensor 'z'"):
        Linear(1).session(anchors=["z"])

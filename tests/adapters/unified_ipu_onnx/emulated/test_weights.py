"""Weights on both sides, and arrays that do not fit."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.adapters.unified_ipu_onnx.emulated.sessions import Linear, array, read
from unified_ipu_onnx.emulated import popart

MOMENTUM = {"defaultLearningRate": (1.0, False), "defaultMomentum": (0.5, True)}
SEPARATE = popart.SGDAccumulatorAndMomentum.Separate


def test_weights_are_read_as_they_were_when_they_were_copied():
    model = Linear(1)
    session = model.session()
    model.run(session, [1])
    held = {"w": np.full((1, 1), 7.0, np.float32)}
    session.readWeights(popart.PyWeightsIO(held))
    assert held["w"].item() == 0.0  # nobody copied them yet
    assert model.weight(session) == -1.0


def test_written_weights_are_sent_with_the_next_copy():
    model = Linear(1)
    session = model.session()
    session.writeWeights(popart.PyWeightsIO({"w": array(5.0, shape=[1, 1])}))
    model.run(session, [1])
    session.weightsFromHost()
    model.run(session, [2])
    assert model.weight(session) == 1.0


def test_slots_are_weights_too():
    model = Linear(1)
    optimizer = popart.SGD(MOMENTUM, accumulatorAndMomentum=SEPARATE)
    session = model.session(optimizer=optimizer)
    model.run(session, [1])
    assert read(session, Accl1___w=[1, 1])["Accl1___w"].item() == 1.0
    session.writeWeights(popart.PyWeightsIO({"Accl1___w": array(8.0, shape=[1, 1])}))
    session.weightsFromHost()
    model.run(session, [1])
    assert model.weight(session) == -6.0


def test_a_model_file_holds_weights_and_slots_and_trains_on(tmp_path):
    model = Linear(1)
    optimizer = popart.SGD(MOMENTUM, accumulatorAndMomentum=SEPARATE)
    session = model.session(updates=2, optimizer=optimizer)
    model.run(session, [1, 2])
    path = str(tmp_path / "model.onnx")
    session.modelToHost(path)
    initializers = onnx.load(path).graph.initializer
    held = {tensor.name: onnx.numpy_helper.to_array(tensor).item() for tensor in initializers}
    assert held == {"w": -5.5, "Accl1___w": 4.5}
    assert list(initializers[0].float_data) == [-5.5]  # scripts read it there
    again = popart.TrainingSession(
        path,
        popart.DataFlow(1, []),
        model.loss,
        optimizer,
        popart.DeviceManager().createCpuDevice(),
    )
    again.prepareDevice()
    again.weightsFromHost()
    model.run(again, [1])
    assert model.weight(again) == -8.75


def _inference(model, constant=False, updates=1):
    options = popart.SessionOptions()
    options.constantWeights = constant
    session = popart.InferenceSession(
        model.builder.getModelProto(),
        popart.DataFlow(updates, [model.y]),
        popart.DeviceManager().createCpuDevice(),
        userOptions=options,
    )
    session.prepareDevice()
    return session


def test_another_session_takes_the_weights_of_a_file(tmp_path):
    model = Linear(1)
    session = model.session()
    model.run(session, [2])
    path = str(tmp_path / "model.onnx")
    session.modelToHost(path)
    other = _inference(model)
    other.resetHostWeights(path)
    other.weightsFromHost()
    assert model.run(other, [3])[model.y].item() == -12.0


def test_constant_weights_cannot_be_replaced_and_need_no_copy():
    model = Linear(1, start=2.0)
    session = _inference(model, constant=True)
    assert model.run(session, [3])[model.y].item() == 6.0
    with pytest.raises(popart.popart_exception, match="when constantWeights is set"):
        session.writeWeights(popart.PyWeightsIO({}))


def test_a_run_without_weights_on_the_device_is_refused():
    model = Linear(1)
    with pytest.raises(popart.popart_exception, match="Must call weightsFromHost"):
        model.run(_inference(model), [1])


def test_nothing_runs_before_the_device_is_prepared():
    model = Linear(1)
    session = popart.TrainingSession(
        model.builder.getModelProto(),
        popart.DataFlow(1, []),
        model.loss,
        popart.SGD({}),
        popart.DeviceManager().createCpuDevice(),
    )
    assert session.initAnchorArrays() == {}
    for act in (session.weightsFromHost, session.weightsToHost, lambda: session.setRandomSeed(1)):
        with pytest.raises(popart.popart_exception, match="prepareDevice"):
            act()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(2, np.float32), "number of elements for tensor"),
        (np.zeros(1, np.float64), "Type discrepancy for tensor"),
        (None, "no array for the input"),
    ],
)
def test_inputs_that_do_not_fit_are_named(value, words):
    model = Linear(1)
    session = model.session()
    feeds = {model.x: np.zeros(1, np.float32)}
    if value is not None:
        feeds[model.t] = value
    with pytest.raises(popart.popart_exception, match=words):
        session.run(popart.PyStepIO(feeds, {}))


def test_leading_axes_of_inputs_are_free():
    model = Linear(2)
    session = model.session(updates=2)
    numbers = array(1, 2, 3, 4, shape=[2, 1, 1, 2])
    session.run(popart.PyStepIO({model.x: numbers, model.t: numbers}, {}))
    assert model.weight(session) == -30.0


def test_arrays_must_lie_in_one_piece():
    with pytest.raises(popart.popart_exception, match="C-contiguous"):
        popart.PyStepIO({"x": np.zeros((4, 4), np.float32).T[1:]}, {})


def test_weights_of_other_shapes_are_refused():
    session = Linear(1).session()
    with pytest.raises(popart.popart_exception, match=r"is float32\[1, 1\]"):
        session.writeWeights(popart.PyWeightsIO({"w": np.zeros(1, np.float32)}))


def test_two_sessions_on_one_device_take_turns_and_send_their_weights_anew():
    model = Linear(1)
    session = model.session()
    model.run(session, [2])
    options = popart.SessionOptions()
    options.constantWeights = False
    other = popart.InferenceSession(
        model.builder.getModelProto(),
        popart.DataFlow(1, [model.y]),
        session._device,
        userOptions=options,
    )
    held = model.weight(session)
    other.prepareDevice()
    for act in (lambda: model.run(session, [1]), session.weightsToHost):
        with pytest.raises(popart.popart_exception, match="another session was loaded"):
            act()
    session.weightsFromHost()
    model.run(session, [1])
    assert model.weight(session) == held - 1.0
    with pytest.raises(popart.popart_exception, match="another session was loaded"):
        model.run(other, [1])

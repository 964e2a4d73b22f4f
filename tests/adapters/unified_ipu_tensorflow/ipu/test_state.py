"""Evaluation, prediction and state of Keras models on emulated IPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from tests.adapters.unified_ipu_tensorflow.ipu.sessions import (
    device,
    distance,
    keras,
    layers,
    mlp,
    numbers,
)
from unified_ipu_tensorflow.emulated import ipu

pytestmark = pytest.mark.timeout(300)

X, Y = numbers(128)
SEEN = numbers(37)


def absolute(outputs: Any, targets: Any) -> Any:
    return tf.reduce_sum(tf.abs(outputs - targets)), outputs.shape[0]


def opened(session: ui.Session, optimizer: Any, build: Any = mlp) -> Any:
    with session.scope():
        model = build()
    loss = keras.losses.MeanSquaredError()
    return model, session.compile(model, loss=loss, optimizer=optimizer)


def test_l6_evaluation_and_prediction_count_each_row_once_and_change_nothing():
    with ui.Session(ui.Plan().replace(device())) as session:
        _, program = opened(session, ui.optim.SGD(0.1))
        loader = session.loader(SEEN, train=False)
        before = program.weights()
        found = program.evaluate(loader, metrics={"mae": absolute})
        outputs = program.predict(loader)
        after = program.weights()
    x, y = SEEN
    expected = np.tanh(x @ before["dense/kernel"] + before["dense/bias"])
    expected = expected @ before["dense_1/kernel"] + before["dense_1/bias"]
    assert np.allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    assert found["loss"] == pytest.approx(float(((expected - y) ** 2).mean()), rel=1e-5)
    assert found["mae"] == pytest.approx(float(np.abs(expected - y).mean()), rel=1e-5)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_system_that_someone_reset_is_configured_again():
    for _ in range(2):
        with ui.Session(ui.Plan().replace(device())) as session:
            _, program = opened(session, ui.optim.SGD(0.1))
            program.predict(session.loader(SEEN, train=False))
        ipu.config.reset_ipu_configuration()


def test_training_goes_on_after_evaluation_as_if_there_had_been_none():
    found = []
    for looks in (False, True):
        with ui.Session(ui.Plan().replace(device())) as session:
            model, program = opened(session, ui.optim.SGD(0.1, momentum=0.9))
            train = session.loader((X, Y))
            for call in train:
                program.step(call)
                if looks:
                    program.evaluate(session.loader(SEEN, train=False))
            found.append(model.get_weights())
    assert distance(*found) == 0.0


def keras_sgd() -> Any:
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    return keras.optimizers.SGD(decay, momentum=0.9)


@pytest.mark.parametrize(
    ("optimizer", "resuming"),
    [
        # The settings come with the state, so the second program has to be compiled anew.
        (lambda: ui.optim.AdamW(0.01), lambda: ui.optim.AdamW(0.5, weight_decay=0.9)),
        (keras_sgd, keras_sgd),
    ],
)
def test_l3_a_checkpoint_goes_on_bit_for_bit_and_on_the_host_to_rounding(
    tmp_path, optimizer, resuming
):
    def run(plan: Any, epochs: int, *, saves: bool = False, resumes: bool = False) -> Any:
        with ui.Session(ui.Plan().replace(plan)) as session:
            model, program = opened(session, (resuming if resumes else optimizer)())
            train = session.loader((X, Y), name="train")
            if resumes:
                session.restore(tmp_path / "at", model=program, train=train)
            for _ in range(epochs):
                for call in train:
                    program.step(call)
            if saves:
                session.save(tmp_path / "at", model=program, train=train)
            return model.get_weights()

    whole = run(device(), 2)
    run(device(), 1, saves=True)
    assert distance(run(device(), 1, resumes=True), whole) == 0.0
    host = {**device(), "target": "cpu"}
    host.pop("ipu.replicas_per_process")
    assert distance(run(host, 1, resumes=True), whole) < 1e-5


def test_rates_are_handed_back_after_each_call_and_at_the_end():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    plain, scheduled = keras.optimizers.SGD(0.5), keras.optimizers.SGD(schedule)
    plan = ui.Plan().replace(device(**{"update.warmup_updates": 4}))
    for optimizer in (plain, scheduled):
        with ui.Session(plan) as session:
            _, program = opened(session, optimizer)
            for call in session.loader((X, Y)):
                program.step(call)
            if optimizer is plain:
                assert float(optimizer.learning_rate) == 0.5
    assert float(plain.learning_rate) == 0.5
    kept = getattr(scheduled, "_learning_rate", None) or scheduled._hyper["learning_rate"]
    assert kept is schedule


def test_a_schedule_beside_an_optimizer_moves_its_rate_until_the_program_is_closed():
    optimizer = keras.optimizers.SGD(0.5)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    with ui.Session(ui.Plan().replace(device())) as session:
        with session.scope():
            model = mlp()
        loss = keras.losses.MeanSquaredError()
        program = session.compile(model, loss=loss, optimizer=optimizer, schedule=schedule)
        found = [program.step(call).lr for call in session.loader((X, Y))]
    assert found == [0.5, 0.25]
    assert float(optimizer.learning_rate) == 0.5


def test_random_layers_draw_natively_where_the_plan_says_so():
    def dropping() -> Any:
        return keras.Sequential(
            [keras.Input((3,)), layers.Dropout(0.5), layers.Dense(1, kernel_initializer="ones")]
        )

    plan = device(**{"ipu.random_layers": "native", "batch.global_batch_size": 16})
    with ui.Session(ui.Plan().replace(plan)) as session:
        _, program = opened(session, ui.optim.SGD(1e-6), dropping)
        losses = [float(program.step(call).loss) for call in session.loader((X, Y))]
        expected = program.predict(session.loader((X, Y), train=False))
    assert len(set(losses)) == len(losses)
    assert np.allclose(expected, X.sum(1, keepdims=True), atol=1e-3)

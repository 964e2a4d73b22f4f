"""Keras models on emulated IPUs against the host target, and against literals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from tests.adapters.unified_ipu_tensorflow.ipu.sessions import (
    Case,
    check_same,
    classes,
    device,
    keras,
    layers,
    mlp,
    numbers,
)

pytestmark = pytest.mark.timeout(300)

# 500 = 7 updates of 64 and one of 52, which padding completes; calls of 5 and of 3 updates.
FIVE = {"batch.updates_per_call": 5}


@pytest.mark.parametrize(
    "optimizer",
    [
        ui.optim.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        ui.optim.AdamW(0.01, weight_decay=0.1),
    ],
)
def test_l5_fifty_updates_are_those_of_the_host(optimizer):
    host, there = Case(numbers(500), 50, optimizer=lambda: optimizer).pair(FIVE)
    assert [update for *_, update, _ in there.exact] == [5, 3] * 7
    check_same(host, there, 1e-4)


def test_l5_one_update_of_adam_is_that_of_the_host():
    case = Case(numbers(64), 1, optimizer=lambda: ui.optim.Adam(0.01, weight_decay=0.1))
    host, there = case.pair()
    check_same(host, there, 5e-6)
    assert sorted(there.tensors) == sorted(host.tensors)


def schedules() -> Any:
    return keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.8)


@pytest.mark.parametrize(
    "optimizer",
    [lambda: keras.optimizers.Adam(schedules()), lambda: keras.optimizers.RMSprop(0.01)],
)
def test_keras_optimizers_and_schedules_are_those_of_the_host(optimizer):
    """The rate is read at the start of a call and holds for its two updates."""
    case = Case(numbers(256), 8, optimizer=optimizer)
    host, there = case.pair({"batch.updates_per_call": 2})
    check_same(host, there, 1e-4)


def test_norms_are_clipped_after_the_division_and_rates_are_warmed_up():
    settings = {"update.clip_norm": 0.5, "update.warmup_updates": 6, "batch.updates_per_call": 2}
    host, there = Case(numbers(256), 8, optimizer=lambda: ui.optim.SGD(0.05)).pair(settings)
    check_same(host, there, 5e-5)
    assert len({rate for _, _, _, rate, *_ in there.exact}) == 4


# The gradient of mean (w x)^2 at w = 1 over x = 1 to 16 is 187, of the sum 2992.
@pytest.mark.parametrize(("reduction", "expected"), [("mean", 0.813), ("sum", -1.992)])
@pytest.mark.parametrize(("replicas", "size"), [(1, 16), (1, 4), (2, 4), (2, 2), (4, 4), (4, 1)])
def test_every_split_has_the_gradient_of_the_whole(replicas, size, reduction, expected):
    def line() -> Any:
        dense = layers.Dense(1, use_bias=False, kernel_initializer="ones")
        return keras.Sequential([keras.Input((1,)), dense])

    x = np.arange(1.0, 17.0, dtype="float32")[:, None]
    case = Case((x, np.zeros_like(x)), 1, line, lambda: ui.optim.SGD(0.001))
    plan = device(
        **{
            "batch.global_batch_size": 16,
            "batch.micro_batch_size": size,
            "ipu.replicas_per_process": replicas,
            "update.reduction": reduction,
        }
    )
    found = case.train(plan)
    assert found.weights[0][0, 0] == pytest.approx(expected, rel=1e-5)
    assert found.losses[0] == pytest.approx(93.5, rel=1e-5)


IGNORING = {
    "ui": lambda: ui.losses.softmax_cross_entropy(
        class_weights=[1.0, 2.0, 0.5, 1.5], ignore_index=3
    ),
    "plain": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}


@pytest.mark.parametrize("loss", sorted(IGNORING))
def test_units_that_weigh_differently_are_divided_by_their_weight(loss):
    case = Case(classes(180), 6, lambda: mlp(4), loss=IGNORING[loss])
    host, there = case.pair({"batch.updates_per_call": 2})
    check_same(host, there, 5e-5)


def test_sample_weights_multiply_rows_and_updates_without_weight_are_taken_out():
    x, y = numbers(256)
    weights = np.random.default_rng(3).uniform(0.5, 2.0, 256).astype("float32")
    case = Case((x, y, weights), 4)
    host, there = case.pair({"batch.updates_per_call": 2})
    check_same(host, there, 5e-5)
    x, y = classes(256)
    y = np.where(np.arange(256) < 200, 3, y)  # with 64 rows an update three of them are ignored
    case = Case((x, y), 1, lambda: mlp(4), loss=IGNORING["ui"])
    host, there = case.pair({"batch.updates_per_call": 4, "data.shuffle": False})
    assert [found[-2:] for found in there.exact] == [(1, 3)]
    check_same(host, there, 5e-5)


def whole(outputs: Any, targets: Any) -> Any:
    return tf.reduce_mean((outputs - targets) ** 2)


def by_row(outputs: Any, targets: Any) -> Any:
    return tf.reduce_sum(tf.abs(outputs - targets), axis=1)


@pytest.mark.parametrize(
    ("loss", "options", "remainder"),
    [
        (whole, {}, "drop"),
        (whole, {"weight": lambda batch: 3.0 * len(batch[0])}, "drop"),
        (by_row, {"loss_reduction": "none"}, "pad"),
    ],
)
def test_losses_of_ones_own_are_fed_as_one_number_or_one_a_row(loss, options, remainder):
    case = Case(numbers(180), 4, loss=lambda: loss, options=options)
    host, there = case.pair({"batch.remainder": remainder})
    check_same(host, there, 5e-5)


def test_several_outputs_have_a_loss_each_and_inputs_a_name():
    def model() -> Any:
        first, second = keras.Input((3,), name="a"), keras.Input((), name="b")
        column = layers.Reshape((1,))(second)
        body = layers.Dense(4, kernel_initializer="ones")(layers.Concatenate()([first, column]))
        start = [
            layers.Dense(n, name=k, kernel_initializer="ones")(body)
            for n, k in ((1, "y"), (2, "z"))
        ]
        found = keras.Model([first, second], start)
        found.compile(loss=["mse", "mae"], loss_weights=[1.0, 0.5])
        return found

    rng = np.random.default_rng(0)
    x = [rng.normal(size=(180, 3)).astype("float32"), rng.normal(size=180).astype("float32")]
    y = [rng.normal(size=(180, n)).astype("float32") for n in (1, 2)]
    case = Case(((x[0], x[1]), (y[0], y[1])), 3, model, lambda: ui.optim.SGD(0.01), lambda: None)
    host, there = case.pair()
    check_same(host, there, 5e-5)


def test_penalties_on_weights_count_once_an_update():
    def model() -> Any:
        return mlp(kernel_regularizer=keras.regularizers.L2(0.1))

    host, there = Case(numbers(180), 4, model).pair()
    check_same(host, there, 5e-5)


@pytest.mark.parametrize(
    "optimizer", [lambda: ui.optim.SGD(0.1), lambda: keras.optimizers.Adam(0.1)]
)
def test_constraints_hold_after_each_update(optimizer):
    def model() -> Any:
        return mlp(kernel_constraint=keras.constraints.NonNeg())

    host, there = Case(numbers(128), 2, model, optimizer).pair()
    check_same(host, there, 5e-5)
    assert there.weights[0].min() == 0.0


def test_what_is_not_chosen_is_not_trained():
    case = Case(numbers(128), 2, options={"trainable": lambda name: "kernel" in name})
    host, there = case.pair()
    check_same(host, there, 5e-5)
    start = mlp().get_weights()
    assert np.array_equal(there.weights[1], start[1])
    assert not np.array_equal(there.weights[0], start[0])


def test_batch_statistics_are_those_of_the_first_replica():
    """Rows 0 to 7 are replica 0's, 8 to 15 replica 1's; momentum is 0.5."""

    def model() -> Any:
        norm = layers.BatchNormalization(momentum=0.5, center=False, scale=False)
        dense = layers.Dense(1, kernel_initializer="ones")
        return keras.Sequential([keras.Input((3,)), norm, dense])

    x, y = numbers(16)
    plan = device(**{"batch.global_batch_size": 16, "data.shuffle": False})
    found = Case((x, y), 1, model).train(plan)
    mean = found.tensors["batch_normalization/moving_mean"]
    assert np.allclose(mean, 0.5 * x[:8].mean(0), atol=1e-6)

"""Keras losses of models, compiled ones too, inside traced functions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.adapters.unified_ipu_tensorflow.scoring import (
    FLOAT64,
    KERAS3,
    KERNEL,
    RNG,
    Scored,
    X,
    Y,
    dense,
    keras,
    micro,
    split_total,
    squares,
)
from unified_ipu.adapter import Job
from unified_ipu.errors import ConfigError, DataError
from unified_ipu_tensorflow.batches import read_batch
from unified_ipu_tensorflow.objectives import build_objective

pytestmark = pytest.mark.timeout(120)


def test_a_keras_loss_gives_its_sum_and_its_count():
    found = Scored(Job(dense(), loss=keras.losses.MeanSquaredError(**FLOAT64)), micro(X, Y))
    assert (found.total, found.weight) == pytest.approx((squares().sum(), 6.0), rel=1e-13)
    expected = X.T @ (X @ KERNEL - Y)  # of the sum of two squares over two outputs
    assert found.gradients[0].numpy() == pytest.approx(expected, rel=1e-12)
    assert found.objective.counts_rows


def test_rows_of_padding_do_not_count():
    counted = np.array([1, 1, 1, 1, 0, 0], np.float32)
    each = squares()[:4]
    for loss, reduction in (
        (keras.losses.MeanSquaredError(**FLOAT64), None),
        (lambda outputs, targets: tf.reduce_mean((outputs - targets) ** 2, 1), "none"),
    ):
        job = Job(dense(), loss=loss, loss_reduction=reduction)
        found = Scored(job, micro(X, Y, counted=counted))
        assert (found.total, found.weight) == pytest.approx((each.sum(), 4.0), rel=1e-13)
        padding = read_batch(micro(X, Y, counted=np.zeros(6)))
        assert found.objective.weight_before(padding) == 0.0
        assert found.objective.weight_before(read_batch(micro(X, Y))) is None


def test_l1_2_sample_weights_scale_and_do_not_count():
    weights = np.array([1.0, 0.5, 0.0, 2.0, 1.0, 3.0])
    expected = (squares() * weights).sum()
    for loss, reduction in (
        (keras.losses.MeanSquaredError(**FLOAT64), None),
        (lambda outputs, targets: tf.reduce_mean((outputs - targets) ** 2, 1), "none"),
    ):
        job = Job(dense(), loss=loss, loss_reduction=reduction)
        found = Scored(job, micro(X, Y, weights))
        assert (found.total, found.weight) == pytest.approx((expected, 6.0), rel=1e-12)


@pytest.mark.parametrize("cuts", [(), (3,), (1, 5), (1, 2, 3, 4, 5)])
def test_l1_11_penalties_of_the_model_weigh_the_same_however_the_update_is_split(cuts):
    penalty = 0.25 * (KERNEL**2).sum()
    for loss in (
        keras.losses.MeanSquaredError(**FLOAT64),
        keras.losses.MeanSquaredError(reduction="sum", **FLOAT64),
        lambda outputs, targets: tf.reduce_mean((outputs - targets) ** 2),
    ):
        job = Job(dense(kernel_regularizer=keras.regularizers.L2(0.25)), loss=loss)
        total, weight = split_total(job, *cuts)
        assert weight == 6.0
        assert total / weight == pytest.approx(squares().mean() + penalty, rel=1e-6)


def test_l1_11_activity_regularizers_are_those_of_the_forward_pass_just_made():
    model = dense(activity_regularizer=keras.regularizers.L2(0.5))
    job = Job(model, loss=keras.losses.MeanSquaredError(**FLOAT64))
    outputs = X @ KERNEL
    expected = squares().sum() + 0.5 * (outputs**2).sum()  # Keras divides it by the rows
    for _ in range(2):
        assert Scored(job, micro(X, Y)).total == pytest.approx(expected, rel=1e-6)


def test_compiled_losses_are_used_where_no_other_is_given():
    model = dense()
    model.compile(loss=keras.losses.MeanSquaredError(**FLOAT64))
    found = Scored(Job(model), micro(X, Y))
    assert (found.total, found.weight) == pytest.approx((squares().sum(), 6.0), rel=1e-13)

    def own(targets, outputs):
        return tf.reduce_sum(targets - tf.cast(outputs, targets.dtype), -1)

    model = dense()
    model.compile(loss=own)  # in compile every function is (y_true, y_pred)
    found = Scored(Job(model), micro(X, Y))
    assert found.total == pytest.approx((Y - X @ KERNEL).sum(), rel=1e-4)


def test_an_attribute_named_loss_is_not_taken_for_a_compiled_one():
    class Own(keras.Model):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self):
            super().__init__(dtype="float64")
            self.loss = keras.losses.MeanSquaredError(**FLOAT64)
            self.kernel = self.add_weight(
                name="kernel", shape=(3, 2), dtype="float64", initializer="zeros"
            )

        def call(self, batch):
            return self.loss(batch[1], batch[0] @ self.kernel)

    found = Scored(Job(Own()), micro(X, Y))
    assert (found.total, found.weight) == pytest.approx(((Y**2).mean(1).sum(), 6.0), rel=1e-6)


class Two(keras.layers.Layer):  # type: ignore[misc]  # TensorFlow has no types
    """Outputs of two heads."""

    def __init__(self, kind):
        super().__init__(dtype="float64")
        self.kind = kind

    def call(self, x):
        parts = x[:, :1], 2.0 * x[:, 1:]
        return {"a": parts[0], "b": parts[1]} if self.kind == "dict" else list(parts)


@pytest.mark.parametrize("kind", ["dict", "list"])
def test_several_outputs_have_a_loss_each_as_keras_adds_them(kind):
    inputs = keras.Input((3,), dtype="float64")
    model = keras.Model(inputs, Two(kind)(inputs))
    first, second = X[:, :1] - 1.0, X[:, 1:] + 3.0
    targets = {"a": first, "b": second} if kind == "dict" else (first, second)
    mse, mae = keras.losses.MeanSquaredError(**FLOAT64), keras.losses.MeanAbsoluteError(**FLOAT64)
    losses = {"a": mse, "b": mae} if kind == "dict" else [mse, mae]
    factors = {"a": 1.0, "b": 0.5} if kind == "dict" else [1.0, 0.5]
    model.compile(loss=losses, loss_weights=factors)
    each = 1.0 + 0.5 * np.abs(X[:, 1:] - 3.0).mean(1)
    found = Scored(Job(model), micro(X, targets))
    assert (found.total, found.weight) == pytest.approx((each.sum(), 6.0), rel=1e-12)
    if KERAS3:
        value = model.compute_loss(
            y=tf.nest.map_structure(tf.constant, targets), y_pred=model(X), sample_weight=None
        )
        assert found.total / 6.0 == pytest.approx(float(value), rel=1e-6)
    counted = np.array([1, 1, 1, 1, 0, 0], np.float32)
    padded = Scored(Job(model), micro(X, targets, counted=counted))
    assert (padded.total, padded.weight) == pytest.approx((each[:4].sum(), 4.0), rel=1e-12)
    weights = RNG.uniform(0.5, 2.0, 6)
    weighed = Scored(Job(model), micro(X, targets, weights))
    assert weighed.total == pytest.approx((each * weights).sum(), rel=1e-12)

    def joint(outputs, goal):
        parts = (outputs["a"], goal["b"]) if kind == "dict" else (outputs[0], goal[1])
        return tf.reduce_mean(parts[0]) + tf.reduce_mean(parts[1])

    by_callable = Scored(Job(model, loss=joint), micro(X, targets))
    expected = 6.0 * (X[:, 0].mean() + second.mean())
    assert by_callable.total == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2, 3, 4, 5)])
def test_heads_with_other_numbers_of_units_keep_their_means(cuts):
    inputs = keras.Input((3,), dtype="float64")
    row = keras.layers.Reshape((3,), dtype="float64")(inputs)
    positions = keras.layers.Reshape((3, 1), dtype="float64")(inputs)
    model = keras.Model(inputs, [row, positions])
    mse, mae = keras.losses.MeanSquaredError(**FLOAT64), keras.losses.MeanAbsoluteError(**FLOAT64)
    model.compile(loss=[mse, mae])
    parts = np.split(np.arange(6), cuts)
    found = [Scored(Job(model), micro(X[r], (X[r] - 1.0, X[r][..., None] - 3.0))) for r in parts]
    assert sum(one.weight for one in found) == 6.0
    assert sum(one.total for one in found) == pytest.approx(6.0 * (1.0 + 3.0), rel=1e-12)


def test_one_array_of_targets_for_two_outputs_is_refused():
    inputs = keras.Input((3,), dtype="float64")
    model = keras.Model(inputs, Two("list")(inputs))
    with pytest.raises(ConfigError, match="2 outputs"):
        Scored(Job(model, loss=["mse", "mse"]), micro(X, Y))
    with pytest.raises(ConfigError, match="3 parts"):
        Scored(Job(model, loss=["mse", "mse", "mse"]), micro(X, (Y, Y)))


def test_a_train_step_of_its_own_is_refused_by_name():
    class Own(keras.Model):  # type: ignore[misc]  # TensorFlow has no types
        def train_step(self, data):
            return {}

    model = Own()
    model.compile(loss="mse")
    with pytest.raises(ConfigError, match="train_step"):
        build_objective(Job(model))


def test_settings_that_contradict_the_loss_are_refused():
    loss = keras.losses.MeanSquaredError()
    with pytest.raises(ConfigError, match="reduction='sum'"):
        build_objective(Job(dense(), loss=loss, loss_reduction="sum"))
    build_objective(Job(dense(), loss=loss, loss_reduction="mean"))
    with pytest.raises(ConfigError, match="expected one of mean, sum, none"):
        build_objective(Job(dense(), loss=loss, loss_reduction="average"))


def test_a_batch_that_is_no_pair_is_refused():
    with pytest.raises(DataError, match="objective="):
        Scored(Job(dense(), loss="mse"), micro({"x": X}))

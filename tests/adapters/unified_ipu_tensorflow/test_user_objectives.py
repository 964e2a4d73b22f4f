"""Callables, losses that models return and objectives, inside traced functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.adapters.unified_ipu_tensorflow.scoring import (
    FLOAT64,
    KERNEL,
    Scored,
    X,
    Y,
    dense,
    keras,
    micro,
    squares,
)
from unified_ipu.adapter import Job, Loss
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import read_batch
from unified_ipu_tensorflow.objectives import build_objective

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("reduction", [None, "mean", "sum", "none"])
def test_l1_2_any_callable_gets_outputs_then_targets(reduction):
    def loss(outputs, targets):
        each = tf.reduce_sum(outputs - 2.0 * targets, 1)
        if reduction == "none":
            return each
        return tf.reduce_sum(each) if reduction == "sum" else tf.reduce_mean(each)

    found = Scored(Job(dense(), loss=loss, loss_reduction=reduction), micro(X, Y))
    expected = (X @ KERNEL - 2.0 * Y).sum()
    assert (found.total, found.weight) == pytest.approx((expected, 6.0), rel=1e-12)
    gradient = np.repeat(X.sum(0)[:, None], 2, 1)
    assert found.gradients[0].numpy() == pytest.approx(gradient, rel=1e-12)


def test_a_loss_that_returns_one_number_refuses_padding_and_sample_weights():
    def loss(outputs, targets):
        return tf.reduce_mean(outputs - targets)

    job = Job(dense(), loss=loss)
    for batch in (
        micro(X, Y, counted=np.array([1, 1, 1, 1, 1, 0], np.float32)),
        micro(X, Y, np.ones(6)),
    ):
        with pytest.raises(ConfigError, match='loss_reduction="none"'):
            Scored(job, batch)


def test_a_weight_of_the_user_is_w():
    def loss(outputs, targets):
        return tf.reduce_mean((outputs - targets) ** 2)

    for one in (loss, keras.losses.MeanSquaredError(**FLOAT64)):
        job = Job(dense(), loss=one, weight=lambda batch: 10.0)
        found = Scored(job, micro(X, Y))
        assert (found.total, found.weight) == pytest.approx((10.0 * squares().mean(), 10.0))
        assert not found.objective.counts_rows
        assert found.objective.takes_weight
    nothing = build_objective(Job(dense(), loss=loss, weight=lambda batch: 0.0))
    assert nothing.weight_before(read_batch(micro(X, Y))) == 0.0
    words = build_objective(Job(dense(), loss=loss, weight=lambda batch: "many"))
    with pytest.raises(ConfigError, match="expected one number"):
        words.weight_before(read_batch(micro(X, Y)))


def test_a_loss_may_return_the_pair_itself():
    def loss(outputs, targets):
        mask = tf.cast(targets > 0.0, outputs.dtype)
        return Loss(tf.reduce_sum(outputs * mask), tf.reduce_sum(mask), {"n": (1.0, 1.0)})

    job = Job(dense(), loss=loss)
    mask = Y > 0.0
    found = Scored(job, micro(X, Y))
    expected = ((X @ KERNEL) * mask).sum(), mask.sum()
    assert (found.total, found.weight) == pytest.approx(expected, rel=1e-12)
    assert found.metrics == {"n": (1.0, 1.0)}
    padded = Scored(job, micro(X, Y, counted=np.array([1, 1, 1, 0, 0, 0], np.float32)))
    expected = ((X @ KERNEL) * mask)[:3].sum(), mask[:3].sum()
    assert (padded.total, padded.weight) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ConfigError, match="cannot weigh rows"):
        Scored(job, micro(X, Y, np.ones(6)))


def test_a_model_may_return_its_loss():
    class Losing(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(KERNEL)

        def __call__(self, x, y):
            outputs = x @ self.kernel
            return tf.reduce_mean((outputs - y) ** 2), outputs

    model = Losing()
    found = Scored(Job(model), micro(X, Y))
    assert (found.total, found.weight) == pytest.approx((squares().sum(), 6.0), rel=1e-12)
    outputs = found.objective.outputs(model, (tf.constant(X), tf.constant(Y)))
    assert outputs.numpy() == pytest.approx(X @ KERNEL)


def test_inputs_of_a_module_are_keywords_or_positions_and_of_keras_one_argument():
    class Module(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        def __call__(self, a, b, training=False):
            return a - b if training else a + b

    def loss(outputs, targets):
        return tf.reduce_sum(outputs, 1)

    for x in ({"b": Y, "a": X[:, :2]}, (X[:, :2], Y)):
        job = Job(Module(), loss=loss, loss_reduction="none")
        found = Scored(job, micro(x, Y))
        assert found.total == pytest.approx((X[:, :2] - Y).sum(), rel=1e-12)
        found = Scored(job, micro(x, Y), training=False)
        assert found.total == pytest.approx((X[:, :2] + Y).sum(), rel=1e-12)
    parts = {name: keras.Input((2,), dtype="float64", name=name) for name in "ab"}
    model = keras.Model(parts, keras.layers.Subtract(dtype="float64")([parts["a"], parts["b"]]))
    found = Scored(Job(model, loss=loss, loss_reduction="none"), micro({"b": Y, "a": X[:, :2]}, Y))
    assert found.total == pytest.approx((X[:, :2] - Y).sum(), rel=1e-12)


def test_an_objective_knows_its_phase_without_saying_so():
    inputs = keras.Input((3,), dtype="float64")
    model = keras.Model(inputs, keras.layers.Dropout(0.5, dtype="float64")(inputs))

    def objective(model, batch):
        kept = tf.cast(tf.not_equal(model(batch["x"]), 0.0), tf.float64)
        return Loss(tf.reduce_sum(kept), tf.size(kept), {"rows": (batch["x"].shape[0], 1.0)})

    job = Job(model, objective=objective)
    x = np.ones((200, 3))
    training = Scored(job, micro({"x": x}))
    assert 200 < training.total < 400, "half of 600"
    assert training.weight == 600.0
    assert training.metrics == {"rows": (200.0, 1.0)}
    assert Scored(job, micro({"x": x}), training=False).total == 600.0
    assert Scored(job, micro({"x": x}), training=False, traced=False).total == 600.0


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (1.0, "a float"),
        (Loss(3.0, 1.0), "Loss(sum=a float)"),
        (Loss(np.ones(2), 1.0), "Loss(sum=a ndarray)"),
    ],
)
def test_an_objective_that_returns_something_else_is_refused(result, words):
    job = Job(dense(), objective=lambda model, batch: result)
    with pytest.raises(ConfigError) as caught:
        Scored(job, micro(X, Y))
    assert words in str(caught.value)


def test_what_an_objective_raises_passes_as_it_is():
    def objective(model, batch):
        raise KeyError("sample 17 is missing")

    with pytest.raises(KeyError) as caught:
        Scored(Job(dense(), objective=objective), micro(X, Y), traced=False)
    assert caught.value.args == ("sample 17 is missing",)


def test_metrics_of_an_objective_are_pairs():
    def objective(model, batch):
        metrics: Any = {"m": 3.0}
        return Loss(tf.reduce_sum(model(batch[0])), 1.0, metrics)

    with pytest.raises(ConfigError, match="metric 'm' is a float"):
        Scored(Job(dense(), objective=objective), micro(X, Y))


def test_an_objective_cannot_tell_padding():
    objective = build_objective(Job(dense(), objective=lambda model, batch: Loss(0.0, 0.0)))
    with pytest.raises(ConfigError, match="cannot tell padding"):
        objective.weight_before(read_batch(micro(X, Y, counted=np.array([1, 1, 1, 1, 1, 0]))))


def test_shapes_that_are_not_those_of_the_reduction_are_refused():
    def each(outputs, targets):
        return outputs - targets

    with pytest.raises(ConfigError, match=r"\[6, 2\], expected a scalar"):
        Scored(Job(dense(), loss=each), micro(X, Y))
    with pytest.raises(ConfigError, match=r"\[6, 2\] for 6 rows"):
        Scored(Job(dense(), loss=each, loss_reduction="none"), micro(X, Y))
    with pytest.raises(ConfigError, match="returned a float"):
        Scored(Job(dense(), loss=lambda outputs, targets: 1.0), micro(X, Y))

"""Evaluation and prediction of one replica: results as pairs, and no trace left in the model."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import Job, Loss, MicroBatch, metrics
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import read_batch
from unified_ipu_tensorflow.evaluation import Evaluation
from unified_ipu_tensorflow.functions import runs_eagerly
from unified_ipu_tensorflow.keras_generation import is_keras3, tf_variable, variables_of
from unified_ipu_tensorflow.objectives import build_objective
from unified_ipu_tensorflow.random_numbers import RandomLayers

pytestmark = pytest.mark.timeout(120)

keras = tf.keras
KERAS3 = is_keras3(keras.layers.Dense(1))
RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 3)).astype("float32")
CLASSES = np.array([0, 1, 2, 0, 1, 2])


def evaluation_of(model, **options):
    job = Job(model, **options)
    layers = RandomLayers(model, is_eager=runs_eagerly(model))
    return Evaluation(model, build_objective(job), random_layers=layers)


def batch(*tree, counted=None):
    return read_batch(MicroBatch(0, tree, len(tree[0]), sample_weight=counted))


def identity():
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Activation("linear")(inputs))


def entropy():
    each = np.log(np.exp(X).sum(1)) - X[np.arange(6), CLASSES]
    return each.astype("float64")


def total(outputs, targets):
    return tf.reduce_sum(outputs), len(targets)


def test_the_loss_and_metrics_come_as_sums_and_weights():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = evaluation_of(identity(), loss=loss).evaluate(
        batch(X, CLASSES), {"accuracy": metrics.accuracy, "total": total}, seed=1
    )
    hits = float((X.argmax(1) == CLASSES).sum())
    assert found["loss"] == pytest.approx((entropy().sum(), 6.0), rel=1e-6)
    assert found["accuracy"] == (hits, 6.0)
    assert found["total"] == pytest.approx((X.sum(), 6.0), rel=1e-5)


def test_l6_6_rows_of_padding_count_in_nothing():
    counted = np.array([1, 1, 0, 1, 0, 0], np.float32)
    rows = counted.astype(bool)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    evaluation = evaluation_of(identity(), loss=loss)
    asked = {"accuracy": metrics.accuracy, "total": total}
    found = evaluation.evaluate(batch(X, CLASSES, counted=counted), asked, seed=1)
    assert found["loss"] == pytest.approx((entropy()[rows].sum(), 3.0), rel=1e-6)
    assert found["accuracy"] == (float((X.argmax(1) == CLASSES)[rows].sum()), 3.0)
    assert found["total"] == pytest.approx((X[rows].sum(), 3.0), rel=1e-5)
    nothing = evaluation.evaluate(batch(X, CLASSES, counted=np.zeros(6)), asked, seed=1)
    assert nothing == {"loss": (0.0, 0.0), "accuracy": (0.0, 0.0), "total": (0.0, 0.0)}


def test_a_mean_over_nothing_is_no_nan():
    def loss(outputs, targets):
        mask = tf.cast(targets < 0, tf.float32)
        return Loss(tf.reduce_sum(outputs) / tf.reduce_sum(mask), tf.reduce_sum(mask))

    found = evaluation_of(identity(), loss=loss).evaluate(batch(X, CLASSES), {}, seed=1)
    assert found == {"loss": (0.0, 0.0)}


def test_metrics_of_an_objective_are_measured_too():
    def objective(model, tree):
        outputs = model(tree[0])
        return Loss(tf.reduce_sum(outputs), 6.0, {"largest": (tf.reduce_max(outputs), 1.0)})

    evaluation = evaluation_of(identity(), objective=objective)
    found = evaluation.evaluate(batch(X, CLASSES), {"total": total}, seed=1)
    assert found["loss"] == pytest.approx((X.sum(), 6.0), rel=1e-5)
    assert found["largest"] == pytest.approx((X.max(), 1.0))
    assert found["total"] == pytest.approx((X.sum(), 6.0), rel=1e-5)
    assert evaluation.predict(batch(X, CLASSES), seed=1) == pytest.approx(X)


class Restless(keras.layers.Layer):  # type: ignore[misc,name-defined]  # TensorFlow has no types
    """Counts its calls and draws in every phase."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(
            name="calls", shape=(), dtype="int32", initializer="zeros", trainable=False
        )
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x):
        self.calls.assign_add(1)
        if KERAS3:
            x = x + keras.random.normal((6, 3))
        return self.dropout(x, training=True)


def state_of(model):
    found = [tf_variable(v).numpy().tobytes() for v in variables_of(model)]
    if KERAS3:
        from keras.src.random.seed_generator import global_seed_generator

        found.append(global_seed_generator().state.value.numpy().tobytes())
    return found


@pytest.mark.parametrize("eager", [False, True])
def test_l6_7_evaluation_changes_no_state_though_the_model_does(eager):
    inputs = keras.Input((3,))
    layers = [Restless(), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
    model.compile(loss="mse", run_eagerly=eager)
    model(X, training=True)
    state_of(model)  # makes Keras' global generator
    evaluation = evaluation_of(model)
    before = state_of(model)
    data = batch(X, np.ones((6, 2), np.float32))
    first = evaluation.evaluate(data, {"total": total}, seed=3)
    outputs = evaluation.predict(data, seed=3)
    assert state_of(model) == before
    assert evaluation.evaluate(data, {"total": total}, seed=3) == first
    assert evaluation.evaluate(data, {"total": total}, seed=4) != first
    assert outputs.sum() == pytest.approx(first["total"][0], rel=1e-5)
    assert state_of(model) == before


def test_one_trace_for_each_form_of_a_batch():
    model = identity()
    traces = []

    def loss(outputs, targets):
        traces.append(outputs.shape)
        return tf.reduce_mean(outputs)

    evaluation = evaluation_of(model, loss=loss)
    for rows in (6, 6, 2, 6, 2):
        evaluation.evaluate(batch(X[:rows], CLASSES[:rows]), {}, seed=rows)
    assert [shape[0] for shape in traces] == [6, 2]


def test_predictions_keep_the_structure_of_the_outputs():
    inputs = keras.Input((3,))
    layer = keras.layers.Activation("linear", name="same")
    model = keras.Model(inputs, {"a": layer(inputs), "b": keras.layers.Flatten()(inputs)})
    found = evaluation_of(model, loss=lambda outputs, targets: 0.0).predict(batch(X), seed=1)
    assert sorted(found) == ["a", "b"]
    assert found["a"] == pytest.approx(X)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (keras.metrics.MeanSquaredError(), "cannot be added over ranks"),
        (lambda outputs, targets: 3.0, "'m' is a float"),
    ],
)
def test_metrics_that_cannot_be_added_are_refused(metric, words):
    evaluation = evaluation_of(identity(), loss=lambda outputs, targets: tf.reduce_mean(outputs))
    with pytest.raises(ConfigError, match=words):
        evaluation.evaluate(batch(X, CLASSES), {"m": metric}, seed=1)

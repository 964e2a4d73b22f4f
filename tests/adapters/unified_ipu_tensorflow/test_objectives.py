"""Objectives of Keras models and callables, inside traced functions as in a replica."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import Job, Loss, MicroBatch
from unified_ipu.errors import ConfigError, DataError
from unified_ipu_tensorflow.batches import read_batch
from unified_ipu_tensorflow.keras_generation import is_keras3
from unified_ipu_tensorflow.objectives import build_objective

pytestmark = pytest.mark.timeout(120)

keras = tf.keras
KERAS3 = is_keras3(keras.layers.Dense(1))
HAS_TYPE = "dtype" in inspect.signature(keras.losses.MeanSquaredError).parameters
FLOAT64 = {"dtype": "float64"} if HAS_TYPE else {}
RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))
KERNEL = RNG.normal(size=(3, 2))


def dense(**options):
    layer = keras.layers.Dense(2, use_bias=False, dtype="float64", **options)
    model = keras.Sequential([keras.Input((3,), dtype="float64"), layer])
    layer.set_weights([KERNEL])
    return model


def micro(*parts, counted=None):
    tree = parts[0] if isinstance(parts[0], dict) and len(parts) == 1 else parts
    return MicroBatch(0, tree, len(tf.nest.flatten(tree)[0]), sample_weight=counted)


class Scored:
    """S, W and the gradient of S, as numbers."""

    def __init__(self, job, batch, *, training=True, traced=True):
        self.objective = build_objective(job)
        read = read_batch(batch)
        weight = self.objective.weight_before(read)
        given = tf.constant(weight, tf.float64) if self.objective.takes_weight else None
        variables = list(getattr(job.model, "trainable_variables", ()))
        watched = [
            getattr(v, "value", v) if KERAS3 and hasattr(v, "path") else v for v in variables
        ]
        self.metrics = {}

        def run(feed, given):
            with tf.GradientTape() as tape:
                score = self.objective.score(job.model, feed, given, training=training)
            factor = tf.cast(score.factor, tf.float64)
            seed = tf.cast(factor, score.value.dtype)
            found = tape.gradient(score.value, watched, output_gradients=seed)
            pairs = {k: [tf.cast(n, tf.float64) for n in v] for k, v in score.metrics.items()}
            return tf.cast(score.value, tf.float64) * factor, score.weight, found, pairs

        run = tf.function(run, autograph=False) if traced else run
        total, counted, self.gradients, pairs = run(read.feed(), given)
        self.total, self.weight = float(total), float(counted)
        self.metrics = {k: tuple(float(n) for n in v) for k, v in pairs.items()}


def squares(x=X, y=Y):
    return ((x @ KERNEL - y) ** 2).mean(1)


def split_total(job, *cuts):
    """S over S / W of the batch cut in parts."""
    parts = np.split(np.arange(6), cuts)
    found = [Scored(job, micro(X[rows], Y[rows])) for rows in parts]
    return sum(one.total for one in found), sum(one.weight for one in found)


def test_a_keras_loss_gives_its_sum_and_its_count():
    found = Scored(Job(dense(), loss=keras.losses.MeanSquaredError(**FLOAT64)), micro(X, Y))
    assert (found.total, found.weight) == pytest.approx((squares().sum(), 6.0), rel=1e-13)
    expected = X.T @ (X @ KERNEL - Y)  # of the sum of two squares over two outputs
    assert found.gradients[0].numpy() == pytest.approx(expected, rel=1e-12)
    assert found.objective.counts_rows


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
    class Own(keras.Model):  # type: ignore[misc,name-defined]  # TensorFlow has no types
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


class Two(keras.layers.Layer):  # type: ignore[misc,name-defined]  # TensorFlow has no types
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


def test_one_array_of_targets_for_two_outputs_is_refused():
    inputs = keras.Input((3,), dtype="float64")
    model = keras.Model(inputs, Two("list")(inputs))
    with pytest.raises(ConfigError, match="2 outputs"):
        Scored(Job(model, loss=["mse", "mse"]), micro(X, Y))
    with pytest.raises(ConfigError, match="3 parts"):
        Scored(Job(model, loss=["mse", "mse", "mse"]), micro(X, (Y, Y)))


def test_a_train_step_of_its_own_is_refused_by_name():
    class Own(keras.Model):  # type: ignore[misc,name-defined]  # TensorFlow has no types
        def train_step(self, data):
            return {}

    model = Own()
    model.compile(loss="mse")
    with pytest.raises(ConfigError, match="train_step"):
        build_objective(Job(model))


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


def test_settings_that_contradict_the_loss_are_refused():
    loss = keras.losses.MeanSquaredError()
    with pytest.raises(ConfigError, match="reduction='sum'"):
        build_objective(Job(dense(), loss=loss, loss_reduction="sum"))
    build_objective(Job(dense(), loss=loss, loss_reduction="mean"))
    with pytest.raises(ConfigError, match="expected one of mean, sum, none"):
        build_objective(Job(dense(), loss=loss, loss_reduction="average"))


def test_shapes_that_are_not_those_of_the_reduction_are_refused():
    def each(outputs, targets):
        return outputs - targets

    with pytest.raises(ConfigError, match=r"\[6, 2\], expected a scalar"):
        Scored(Job(dense(), loss=each), micro(X, Y))
    with pytest.raises(ConfigError, match=r"\[6, 2\] for 6 rows"):
        Scored(Job(dense(), loss=each, loss_reduction="none"), micro(X, Y))
    with pytest.raises(ConfigError, match="returned a float"):
        Scored(Job(dense(), loss=lambda outputs, targets: 1.0), micro(X, Y))


def test_a_batch_that_is_no_pair_is_refused():
    with pytest.raises(DataError, match="objective="):
        Scored(Job(dense(), loss="mse"), micro({"x": X}))

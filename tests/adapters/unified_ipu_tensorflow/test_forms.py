"""What is trained and how it is said, through sessions: late models, masks, several outputs."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from unified_ipu.testing.scenarios import batch_plan
from unified_ipu_tensorflow.keras_generation import is_keras3

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.*TensorFlow runs already.*"),
]

keras: Any = tf.keras
layers: Any = keras.layers
KERAS3 = is_keras3(keras.layers.Dense(1))
HAS_TYPE = "dtype" in inspect.signature(keras.losses.MeanSquaredError).parameters
FLOAT64 = {"dtype": "float64"} if HAS_TYPE else {}
RNG = np.random.default_rng(3)
X = RNG.normal(size=(8, 3))
Y = X.sum(1, keepdims=True)


class Late(keras.Model):  # type: ignore[misc]  # TensorFlow has no types
    """Makes its variables from the first batch."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(4, activation="tanh")
        self.last = layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.hidden(x))


def squares(outputs, targets):
    return tf.reduce_mean((outputs - targets) ** 2)


def objective(model, batch):
    distance = batch["y"] - model(batch["x"])
    return ui.Loss(tf.reduce_sum(distance**2), 8)


@pytest.mark.parametrize("form", ["callable", "keras", "compiled", "objective"])
def test_a_model_without_variables_takes_the_type_of_its_layers_and_not_of_the_batch(form):
    model = Late()
    options: Any = {}
    if form == "compiled":
        model.compile(loss="mse")
    elif form == "objective":
        options["objective"] = objective
    else:
        options["loss"] = squares if form == "callable" else "mse"
    with ui.Session() as session:
        program = session.compile(model, optimizer=ui.optim.SGD(0.1), **options)
        batch = {"x": X, "y": Y} if form == "objective" else (X, Y)
        losses = [program.step(batch).loss for _ in range(3)]
        weights = program.weights()
    assert losses[0] > losses[1] > losses[2]
    names = ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    assert list(weights) == names
    assert {value.dtype.name for value in weights.values()} == {"float32"}


def tagger(weight):
    """One number a word of a sentence; word 0 is no word."""
    words = keras.Input((5,), dtype="int32")
    table = layers.Embedding(7, 1, mask_zero=True, dtype="float64", name="table")
    model = keras.Model(words, table(words))
    table.set_weights([weight])
    return model


@pytest.mark.case("O-G1")
@pytest.mark.parametrize("micro", [1, 2, 3, 6])
def test_l1_2_masked_words_are_no_units_however_the_update_is_split(micro):
    lengths = [5, 1, 2, 4, 1, 3]
    words = np.zeros((6, 5), np.int32)
    for row, length in enumerate(lengths):
        words[row, :length] = RNG.integers(1, 7, length)
    targets = RNG.normal(size=(6, 5, 1))
    weight = RNG.normal(size=(7, 1))
    plan = ui.Plan.from_dict(batch_plan(6, micro))
    with ui.Session(plan) as session:
        model = tagger(weight)
        program = session.compile(
            model,
            loss=keras.losses.MeanSquaredError(**FLOAT64),
            optimizer=ui.optim.SGD(1.0),
        )
        loader = session.loader(ui.data.arrays(words, targets))
        records = [program.step(call) for call in loader]
        found = program.weights()["table/embeddings"]
    mask = words > 0
    distance = (weight[words] - targets)[..., 0] * mask
    gradient = np.zeros(7)
    np.add.at(gradient, words[mask], 2.0 * distance[mask])
    assert [record.weight for record in records] == [16.0]
    assert records[0].loss == pytest.approx((distance**2).sum() / 16, rel=1e-12)
    assert found[:, 0] == pytest.approx(weight[:, 0] - gradient / 16, rel=1e-12)


def test_two_heads_train_as_keras_trains_them():
    inputs = keras.Input((3,), dtype="float64")
    heads = {
        name: layers.Dense(1, use_bias=False, dtype="float64", name=name)(inputs) for name in "ab"
    }
    model = keras.Model(inputs, heads)
    before = [value.copy() for value in model.get_weights()]
    mse = keras.losses.MeanSquaredError(**FLOAT64)
    model.compile(loss={"a": mse, "b": mse}, loss_weights={"a": 1.0, "b": 0.25})
    targets = {"a": Y, "b": -Y}
    plan = ui.Plan.from_dict(batch_plan(8, 3))
    with ui.Session(plan) as session:
        program = session.compile(model, optimizer=ui.optim.SGD(1.0))
        loader = session.loader(ui.data.arrays(X, targets))
        (record,) = [program.step(call) for call in loader]
        held = session.loader(ui.data.arrays(X, targets), train=False)
        outputs = program.predict(held)
        evaluated = program.evaluate(held)["loss"]
    for kernel, after, target, factor in zip(before, model.get_weights(), (Y, -Y), (1.0, 0.25)):
        gradient = factor * 2.0 * X.T @ (X @ kernel - target) / 8
        assert after == pytest.approx(kernel - gradient, rel=1e-9)
    expected = sum(
        factor * ((X @ kernel - target) ** 2).mean()
        for kernel, target, factor in zip(before, (Y, -Y), (1.0, 0.25))
    )
    assert record.loss == pytest.approx(expected, rel=1e-12)
    after = model.get_weights()
    assert outputs["b"] == pytest.approx(X @ after[1], rel=1e-12)
    expected = ((X @ after[0] - Y) ** 2).mean() + 0.25 * ((X @ after[1] + Y) ** 2).mean()
    assert evaluated == pytest.approx(expected, rel=1e-12)


def test_a_recurrent_layer_with_dropout_is_keyed():
    def run():
        model = keras.Sequential(
            [keras.Input((4, 3)), layers.Dropout(0.5), layers.LSTM(2), layers.Dense(1)]
        )
        model.set_weights([np.full(w.shape, 0.1) for w in model.get_weights()])
        with ui.Session() as session:
            program = session.compile(model, loss="mse", optimizer=ui.optim.SGD(0.1))
            batch = np.ones((8, 4, 3)), Y
            return [program.step(batch).loss for _ in range(2)]

    first = run()
    assert run() == first


@pytest.mark.parametrize("shape", [(6, 1), (6, 1, 1), (6, 1, 1, 1), (3, 2, 1, 1)])
def test_l5_4_the_moving_variance_follows_the_rule_of_the_generation(shape):
    x = np.arange(6.0, dtype=np.float32).reshape(shape)
    norm = layers.BatchNormalization(momentum=0.0, name="norm")
    inputs = keras.Input(shape[1:])
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(norm(inputs))))
    with ui.Session() as session:
        program = session.compile(model, loss="mse", optimizer=ui.optim.SGD(0.1))
        program.step((x, np.ones((len(x), 1))))
        found = program.weights()["norm/moving_variance"]
    is_unbiased = not KERAS3 and len(shape) == 4
    assert found[0] == pytest.approx(3.5 if is_unbiased else 35 / 12, rel=1e-6)

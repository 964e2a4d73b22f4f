"""Layers of many kinds: two replicas with short micro-batches make the update of the whole."""

from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np
import pytest
import tensorflow as tf

from tests.adapters.unified_ipu_tensorflow.driving import Driver, keras, layers, micro
from unified_ipu.adapter import Job, optim

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

ROWS = 7
RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(ROWS, 8, 8, 2))
SEQUENCES = RNG.normal(size=(ROWS, 5, 3))
WORDS = RNG.integers(1, 9, (ROWS, 6)) * (np.arange(6) < RNG.integers(2, 7, (ROWS, 1)))
TARGETS = RNG.normal(size=(ROWS, 2))


@pytest.fixture(autouse=True)
def _in_float64():
    # Keras 3 makes its policy of the float type once, so both have to be set.
    policies, before = keras.mixed_precision, keras.backend.floatx()
    policy = policies.global_policy()
    keras.backend.set_floatx("float64")
    policies.set_global_policy("float64")
    yield
    policies.set_global_policy(policy)
    keras.backend.set_floatx(before)


def convolutions() -> Any:
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(3, 3, strides=2, padding="same", activation="relu")(inputs)
    y = layers.SeparableConv2D(3, 3, padding="same")(x)
    x = layers.add([x, layers.LayerNormalization()(y)])
    x = layers.MaxPooling2D()(layers.Conv2DTranspose(4, 2, strides=2)(x))
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def masked_words() -> Any:
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int64"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Bidirectional(layers.LSTM(3)),
            layers.Dense(2),
        ]
    )


def attention() -> Any:
    inputs = keras.Input((5, 3))
    x = layers.MultiHeadAttention(2, 4)(inputs, inputs)
    x = layers.LayerNormalization()(x + inputs)
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalMaxPooling1D()(x)))


def two_inputs() -> Any:
    first, second = keras.Input((8, 8, 2), name="images"), keras.Input((5, 3), name="rows")
    shared = layers.Dense(3, activation="tanh")
    both = layers.concatenate(
        [layers.Flatten()(first), layers.Flatten()(shared(shared(second)))], axis=-1
    )
    return keras.Model({"images": first, "rows": second}, layers.Dense(2)(both))


class Residual(keras.Model):  # type: ignore[misc]  # of no known type
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(3, activation="elu") for _ in range(3)]
        self.scale = self.add_weight(name="scale", shape=(3,), initializer="ones")
        self.head = layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.1))

    def call(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + self.scale * block(x)
        return self.head(tf.reduce_mean(x, 1))


def residual() -> Any:
    model = Residual()
    model(tf.zeros((1, 5, 3), tf.float64))
    return model


class Plain(tf.Module):  # type: ignore[misc]  # of no known type
    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        self.kernel = tf.Variable(rng.normal(size=(3, 3, 2, 4)))
        self.parts = [tf.Variable(rng.normal(size=(4, 2))), tf.Variable(np.zeros(2))]

    def __call__(self, x: Any) -> Any:
        hidden = tf.nn.conv2d(x, self.kernel, 2, "SAME")
        return tf.reduce_mean(tf.tanh(hidden), [1, 2]) @ self.parts[0] + self.parts[1]


ZOO: Dict[str, Any] = {
    "convolutions": (convolutions, IMAGES),
    "masked words": (masked_words, WORDS),
    "attention": (attention, SEQUENCES),
    "two inputs": (two_inputs, {"images": IMAGES, "rows": SEQUENCES}),
    "a subclass": (residual, SEQUENCES),
    "a module": (Plain, IMAGES),
}


def values(model: Any) -> Any:
    return [np.array(v.numpy() if hasattr(v, "numpy") else v) for v in model.trainable_variables]


def same(make: Callable[[], Any], like: Any) -> Any:
    model = make()
    for variable, value in zip(model.trainable_variables, values(like)):
        variable.assign(value)
    return model


def part(tree: Any, start: int, stop: int) -> Any:
    if isinstance(tree, dict):
        return {key: leaf[start:stop] for key, leaf in tree.items()}
    return tree[start:stop]


@pytest.mark.parametrize("name", ZOO)
def test_l1_3_two_replicas_make_the_update_of_the_whole(name):
    make, x = ZOO[name]
    whole = make()
    start = values(whole)
    loss = keras.losses.MeanSquaredError()
    settings = optim.SGD(0.1, momentum=0.9)
    models = [same(make, whole), same(make, whole)]
    alone = Driver([Job(whole, settings, loss)])
    together = Driver([Job(model, settings, loss) for model in models])
    cuts = [[(0, 3), (3, 4)], [(4, 7)]]
    for _ in range(2):
        alone.update([micro(x, TARGETS)], scale=1.0 / ROWS)
        together.update(
            *([micro(part(x, *c), part(TARGETS, *c)) for c in mine] for mine in cuts), scale=0.25
        )
    for model in models:
        # Absolute: the gradient of an attention's key bias is 0 but for rounding.
        assert max(abs(a - b).max() for a, b in zip(values(model), values(whole))) < 1e-12
    assert max(abs(a - b).max() for a, b in zip(values(whole), start)) > 1e-3
    assert together.replicas[0].traces == 2

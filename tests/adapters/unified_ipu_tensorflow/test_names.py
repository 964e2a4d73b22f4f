from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from unified_ipu_tensorflow.names import all_layers, named_variables

pytestmark = pytest.mark.timeout(120)

keras: Any = tf.keras
layers: Any = tf.keras.layers
GENERATION = int(keras.__version__.partition(".")[0])


def names(model, role=None):
    return [entry.name for entry in named_variables(model) if role in {None, entry.role}]


def convnet():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.3)(x)
    x = layers.Flatten()(x)
    inner = keras.Sequential([layers.Dense(4), layers.Dense(4, name="mine")])
    return keras.Model(inputs, layers.Dense(2)(layers.Dense(3)(inner(x))))


CONVNET = [
    "conv2d/kernel",
    "conv2d/bias",
    "batch_normalization/gamma",
    "batch_normalization/beta",
    "sequential/dense/kernel",
    "sequential/dense/bias",
    "sequential/mine/kernel",
    "sequential/mine/bias",
    "dense/kernel",
    "dense/bias",
    "dense_1/kernel",
    "dense_1/bias",
]


def test_names_do_not_count_the_models_that_were_built_before():
    assert names(convnet(), "parameter") == CONVNET
    assert names(convnet(), "parameter") == CONVNET


def test_moving_statistics_and_seeds_are_buffers_with_rules_of_their_own():
    buffers = {e.name: e.sync for e in named_variables(convnet()) if e.role == "buffer"}
    seeds = {"dropout/seed_generator_state": "none"} if GENERATION > 2 else {}
    assert buffers == {
        "batch_normalization/moving_mean": "mean",
        "batch_normalization/moving_variance": "mean",
        **seeds,
    }


def test_what_is_frozen_stays_a_parameter():
    model = convnet()
    model.trainable = False
    assert names(model, "parameter") == CONVNET


class Block(layers.Layer):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(3)
        self.rest = [layers.Dense(3), layers.Dense(3)]

    def build(self, shape):
        self.a = self.add_weight(shape=(3,), initializer="ones")
        self.b = self.add_weight(shape=(3,), initializer="ones", name="scale")
        super().build(shape)

    def call(self, x):
        for layer in (self.first, *self.rest):
            x = layer(x)
        return x * self.a * self.b


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.both = layers.Bidirectional(layers.LSTM(2))
        self.head = layers.Dense(1)

    def call(self, x):
        return self.head(self.both(self.block(x)))


def test_layers_inside_layers_have_paths():
    for _ in range(2):
        model = Subclassed()
        model(tf.zeros((1, 4, 3)))
        lstm = [f"bidirectional/{way}_lstm/lstm_cell" for way in ("forward", "backward")]
        assert names(model, "parameter") == [
            "block/variable",
            "block/scale",
            *(
                f"block/{d}/{w}"
                for d in ("dense", "dense_1", "dense_2")
                for w in ("kernel", "bias")
            ),
            *(f"{cell}/{w}" for cell in lstm for w in ("kernel", "recurrent_kernel", "bias")),
            "dense/kernel",
            "dense/bias",
        ]


def test_a_layer_used_in_two_places_has_two_names_of_one_variable():
    shared = layers.Dense(2, use_bias=False)
    outer = keras.Sequential(
        [keras.Input((2,)), keras.Sequential([shared]), keras.Sequential([shared])]
    )
    first, second = named_variables(outer)
    assert (first.name, second.name) == ("sequential/dense/kernel", "sequential_1/dense/kernel")
    assert first.variable is second.variable


class Module(tf.Module):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([1.0])
        self.twin = self.weight
        self.steps = tf.Variable(0, trainable=False)
        self.parts = {"a": [keras.Sequential([keras.Input((2,)), layers.Dense(1)])]}

    def __call__(self, x):
        return self.parts["a"][0](x) * self.weight


def test_variables_of_a_module_have_the_names_of_its_attributes():
    assert [(e.name, e.role) for e in named_variables(Module())] == [
        ("parts/a/0/dense/kernel", "parameter"),
        ("parts/a/0/dense/bias", "parameter"),
        ("steps", "buffer"),
        ("twin", "parameter"),
        ("weight", "parameter"),
    ]


class Callable:
    def __init__(self):
        self.trainable_variables = [tf.Variable(1.0, name="slope"), tf.Variable(0.0, name="slope")]

    def __call__(self, x):
        return x * self.trainable_variables[0] + self.trainable_variables[1]


def test_variables_of_a_callable_have_their_own_names_made_different():
    assert names(Callable()) == ["slope", "slope_1"]


def test_layers_are_listed_with_the_names_that_variables_have():
    inner = [name for name, _ in all_layers(convnet())]
    assert "sequential/mine" in inner
    assert "batch_normalization" in inner
    assert [n for n, _ in all_layers(Module()) if "input" not in n] == [
        "parts/a/0",
        "parts/a/0/dense",
    ]


class Child(layers.Layer):  # type: ignore[misc]  # of no known type
    """Says that its parent is inside of it; Keras 2 allows that, Keras 3 recurses for ever."""

    def __init__(self, parent):
        super().__init__(name="child")
        object.__setattr__(self, "parent", parent)
        self.dense = layers.Dense(1)
        self.dense.build((None, 2))

    def _flatten_layers(self, include_self=True, recursive=True):
        del include_self, recursive
        return [self.parent, self.dense]


def test_a_layer_that_holds_its_parent_is_visited_once():
    parent = keras.Sequential([layers.Dense(2)], name="parent")
    parent.build((None, 2))
    child = Child(parent)
    parent._flatten_layers = lambda include_self=True, recursive=True: [child]
    assert [name for name, _ in all_layers(parent)] == ["child", "child/dense"]
    assert names(parent)[:2] == ["child/dense/kernel", "child/dense/bias"]

"""Random layers inside traced functions: keyed without another trace, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import Job, MicroBatch
from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.batches import read_batch
from unified_ipu_tensorflow.functions import GradientFunction
from unified_ipu_tensorflow.global_generator import StandIn
from unified_ipu_tensorflow.keras_generation import is_keras3
from unified_ipu_tensorflow.objectives import build_objective
from unified_ipu_tensorflow.random_numbers import RandomLayers, check_graph

pytestmark = pytest.mark.timeout(120)

keras = tf.keras
KERAS3 = is_keras3(keras.layers.Dense(1))
X = np.ones((4, 16), np.float32)


class Drawing:
    """Runs a model in training with keys, traced once."""

    def __init__(self, *layers):
        self.model = keras.Sequential([keras.Input(X.shape[1:]), *layers])
        self.random = RandomLayers(self.model)
        self.traces = 0
        self.function = tf.function(self._run, autograph=False)

    def _run(self, x, seeds):
        self.traces += 1
        self.random.key(seeds if self.random.count else None)
        outputs = self.model(x, training=True)
        self.random.release()
        return outputs

    def __call__(self, seed):
        return self.function(tf.constant(X), tf.constant(self.random.seeds(seed))).numpy()


@pytest.mark.case("O-M5")
def test_l3_2_masks_are_a_function_of_the_key_alone_in_one_trace():
    run = Drawing(keras.layers.Dropout(0.5))
    masks = [run(seed).tobytes() for seed in range(20)]
    assert len(set(masks)) == 20
    assert [run(seed).tobytes() for seed in range(20)] == masks
    assert Drawing(keras.layers.Dropout(0.5))(7).tobytes() == masks[7]
    assert run.traces == 1
    values = run(3)
    assert set(np.unique(values)) == {0.0, 2.0}
    assert 16 <= np.count_nonzero(values) <= 48, "half of 64, within four sigma"


def test_l3_2_layers_and_calls_do_not_share_masks():
    layer = keras.layers.Dropout(0.5)
    inputs = keras.Input(X.shape[1:])
    first, second = layer(inputs), layer(inputs)
    other = keras.layers.Dropout(0.5)(inputs)
    model = keras.Model(inputs, [first, second, other])
    random = RandomLayers(model)
    random.key(random.seeds(5))
    found = [part.numpy().tobytes() for part in model(tf.constant(X), training=True)]
    random.release()
    assert len(set(found)) == 3


def test_dropout_of_whole_channels_keeps_its_shape_of_noise():
    layer = keras.layers.SpatialDropout1D(0.5)
    inputs = keras.Input((5, 16))
    model = keras.Model(inputs, layer(inputs))
    random = RandomLayers(model)
    random.key(random.seeds(5))
    found = model(tf.ones([4, 5, 16]), training=True).numpy()
    random.release()
    assert (found == found[:, :1]).all()
    assert set(np.unique(found)) == {0.0, 2.0}


def test_seeds_are_two_words_a_layer_in_the_range_of_keras():
    run = Drawing(keras.layers.Dropout(0.5), keras.layers.Dropout(0.5))
    seeds = run.random.seeds(2**63 - 1)
    assert seeds.shape == (run.random.count, 2)
    assert seeds.dtype == np.int64
    assert 0 <= seeds.min() <= seeds.max() < 2**31 - 2
    assert len(np.unique(seeds)) == seeds.size
    assert (run.random.seeds(2**63 - 1) == seeds).all()


def test_without_keys_layers_draw_as_they_always_did():
    run = Drawing(keras.layers.Dropout(0.5))
    keyed = run(1)
    layer = run.model.layers[-1]
    after = [layer(tf.constant(X), training=True).numpy().tobytes() for _ in range(2)]
    assert after[0] != after[1]
    assert (run.model(tf.constant(X), training=False).numpy() == X).all()
    run.random.close()
    assert layer(tf.constant(X), training=True).shape == keyed.shape


class Noise(keras.layers.Layer):  # type: ignore[misc,name-defined]  # TensorFlow has no types
    """Draws from TensorFlow's own generator, whose numbers depend on what ran before."""

    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


def test_l3_4_what_cannot_be_keyed_is_refused_by_name():
    model = keras.Sequential([keras.Input(X.shape[1:]), Noise(name="own_noise")])
    traced = tf.function(lambda x: model(x, training=True), autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec(X.shape, tf.float32)).graph
    with pytest.raises(CapabilityError, match=r"own_noise.*RandomStandardNormal"):
        check_graph(graph)
    inner = tf.function(lambda x: tf.map_fn(lambda row: row + tf.random.uniform([16]), x))
    with pytest.raises(CapabilityError, match="RandomUniform"):
        check_graph(inner.get_concrete_function(tf.TensorSpec(X.shape, tf.float32)).graph)


def test_what_is_keyed_passes_the_check():
    run = Drawing(keras.layers.Dropout(0.5), keras.layers.Dense(3))
    x, seeds = tf.constant(X), tf.constant(run.random.seeds(1))
    check_graph(run.function.get_concrete_function(x, seeds).graph)


class Unseeded(keras.layers.Layer):  # type: ignore[misc,name-defined]  # TensorFlow has no types
    """Draws from the global generator of Keras 3, which belongs to no layer."""

    def call(self, x, training=False):
        return keras.ops.add(x, keras.random.normal((4, 16))) if training else x


needs_keras3 = pytest.mark.skipif(not KERAS3, reason="Keras 2 has no generator without a layer")


@needs_keras3
@pytest.mark.parametrize("is_eager", [False, True])
def test_numbers_drawn_without_a_generator_are_keyed_once_a_trace_shows_them(is_eager):
    model = keras.Sequential([keras.Input((16,)), Unseeded(), Unseeded()])
    layer = keras.layers.Dense(1)
    model.add(layer)
    model.compile(loss="mse", run_eagerly=is_eager)
    random = RandomLayers(model, is_eager=is_eager)
    assert random.count == (1 if is_eager else 0)
    before = global_state()
    found = []
    function = GradientFunction(
        model,
        build_objective(Job(model)),
        random,
        [v.value for v in layer.trainable_variables],
        [None, None],
    )
    for seed in (1, 2, 1):
        batch = read_batch(MicroBatch(0, (X, np.ones((4, 1), np.float32)), 4))
        found.append(function(batch.feed(), None, scale=1.0, seed=seed).numbers.numpy()[0])
    assert found[0] == found[2] != found[1]
    assert random.count == 1
    assert function.traces == (0 if is_eager else 2)
    assert global_state() is before


def global_state():
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("global_seed_generator")


@needs_keras3
def test_draws_of_a_pass_differ_and_come_again_with_its_seed():
    stand_in = StandIn(is_used=False)
    seed = tf.constant([3, 4], tf.int64)

    def draws():
        stand_in.install(seed)
        found = [tuple(stand_in.next().numpy().tolist()) for _ in range(3)]
        stand_in.remove()
        return found

    first = draws()
    assert len(set(first)) == 3
    assert draws() == first
    assert stand_in.is_used


@needs_keras3
def test_models_that_draw_nothing_pay_for_nothing():
    random = RandomLayers(keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)]))
    assert random.count == 0
    before = global_state()
    random.key(None)
    assert global_state() is not before
    random.release()
    assert global_state() is before

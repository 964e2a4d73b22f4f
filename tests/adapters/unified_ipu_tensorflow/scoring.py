"""Runs objectives inside traced functions, as a replica does, and reads the numbers back."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import MicroBatch
from unified_ipu_tensorflow.batches import read_batch
from unified_ipu_tensorflow.keras_generation import is_keras3, tf_variable
from unified_ipu_tensorflow.objectives import build_objective

keras: Any = tf.keras
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
        watched = [tf_variable(variable) for variable in variables]
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

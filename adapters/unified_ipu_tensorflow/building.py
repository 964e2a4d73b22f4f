"""Models that make their variables from the first batch they see."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import Any, Iterator

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import MicroBatch, Tree, map_tree
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import input_dtype, read_batch
from unified_ipu_tensorflow.half_precision import dtype_policy
from unified_ipu_tensorflow.keras_generation import is_keras, tf_variable, variables_of
from unified_ipu_tensorflow.objectives import Objective

_SEEDS = (1 << 31) - 1
ADVICE = (
    "the model has no weights before its first batch; call model.build(input_shape), or call it "
    "once on a batch, before compile, or train first"
)


def is_built(model: Any) -> bool:
    """Whether a model's variables are there; what Keras builds late says so itself."""
    if is_keras(model):
        return bool(getattr(model, "built", True))
    return bool(variables_of(model))


def build_model(
    model: Any, objective: Objective, tree: Tree, *, seed: int, compute: str = "float32"
) -> None:
    """Run forward once, in evaluation mode, on one row of zeros.

    Zeros are numbers of every type, and indices that every table has. What forward moves in
    evaluation too (a counter) is put back.

    Args:
        model: The user's.
        objective: From ``build_objective``; it knows how the model is called.
        tree: An empty batch of the form of the first one.
        seed: Of the initial weights.
        compute: Type that layers made now compute in.

    Raises:
        ConfigError: If the model has no variables afterwards.
    """
    row = map_tree(tree, lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype))
    before = [(variable, variable.numpy()) for variable in map(tf_variable, variables_of(model))]
    with seeded(seed), dtype_policy(compute):
        objective.visit(model, read_batch(MicroBatch(0, row, 1), dtype=input_dtype(model)).feed())
    for variable, value in before:
        variable.assign(value)
    if not is_built(model):
        raise ConfigError(f"{ADVICE}; the first batch did not make any")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw initial weights from a seed.

    Keras 3 seeds them from Python's ``random``, which is put back afterwards.
    """
    tf.random.set_seed(seed & _SEEDS)
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)

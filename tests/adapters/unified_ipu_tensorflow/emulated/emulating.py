"""A linear model on emulated IPUs whose gradients can be said by heart."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Iterator

import numpy as np
import tensorflow as tf

from unified_ipu_tensorflow.emulated import ipu

keras: Any = tf.keras
layers: Any = tf.keras.layers

# loss = mean of (w x)^2 at w = 1: its gradient is 2 mean(x^2) = 2 * 1496 / 16 = 187.
X = np.arange(1.0, 17.0, dtype="float32")[:, None]
Y = np.zeros((16, 1), "float32")
RATE = 0.001


@contextmanager
def strategy(ipus: int = 1) -> Iterator[Any]:
    """The scope of a strategy over so many IPUs."""
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = ipus
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that another test configured otherwise
        config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategyV1().scope():
        yield


def line(*, regularizer: Any = None) -> Any:
    """``w x`` with w = 1."""
    dense = layers.Dense(
        1, use_bias=False, kernel_initializer="ones", kernel_regularizer=regularizer
    )
    return keras.Sequential([keras.Input((1,)), dense])


def mse(reduction: str = "sum_over_batch_size") -> Any:
    return keras.losses.MeanSquaredError(reduction=reduction)


def batches(size: int, x: Any = X, y: Any = Y) -> Any:
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True)


def gradient_of(model: Any) -> float:
    """Of the one update that plain gradient descent made from w = 1."""
    return (1.0 - float(model.get_weights()[0][0, 0])) / RATE


def sgd(**options: Any) -> Any:
    return keras.optimizers.SGD(RATE, **options)

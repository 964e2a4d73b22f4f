"""The same networks in Keras, channels last inside, and the maps to PyTorch's names and axes.

They take the same batches, ``[n, 1, 28, 28]``, so the convolutions begin with a ``Permute``; a
second one before ``Flatten`` puts the features into the order in which PyTorch flattens them.
Without it every shape fits and every sum is wrong.
"""

from __future__ import annotations

from typing import Any, Dict

import tensorflow as tf

NAMES: Dict[str, Any] = {
    "mlp": {
        "fc1/kernel": ["fc1.weight", "IO->OI"],
        "fc1/bias": "fc1.bias",
        "fc2/kernel": ["fc2.weight", "IO->OI"],
        "fc2/bias": "fc2.bias",
        "fc3/kernel": ["fc3.weight", "IO->OI"],
        "fc3/bias": "fc3.bias",
    },
    "convnet": {
        "conv1/kernel": ["conv1.weight", "HWIO->OIHW"],
        "conv1/bias": "conv1.bias",
        "conv2/kernel": ["conv2.weight", "HWIO->OIHW"],
        "conv2/bias": "conv2.bias",
        "fc1/kernel": ["fc1.weight", "IO->OI"],
        "fc1/bias": "fc1.bias",
        "fc2/kernel": ["fc2.weight", "IO->OI"],
        "fc2/bias": "fc2.bias",
    },
}


def build(model: str, dtype: str) -> Any:
    """Make ``"mlp"`` or ``"convnet"`` in ``"float32"`` or ``"float64"``."""
    tf.keras.backend.set_floatx(dtype)  # of the loss, too
    return mlp() if model == "mlp" else convnet()


def mlp() -> Any:
    """Two hidden layers on flattened digits."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.InputLayer((1, 28, 28)),
            layers.Flatten(),
            layers.Dense(128, activation="tanh", name="fc1"),
            layers.Dense(64, activation="tanh", name="fc2"),
            layers.Dense(10, name="fc3"),
        ]
    )


def convnet(*, permutes_before_flatten: bool = True) -> Any:
    """Two convolutions and two dense layers."""
    layers = tf.keras.layers
    permute = [layers.Permute((3, 1, 2))] if permutes_before_flatten else []
    return tf.keras.Sequential(
        [
            layers.InputLayer((1, 28, 28)),
            layers.Permute((2, 3, 1)),
            layers.Conv2D(8, 5, padding="same", activation="swish", name="conv1"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, padding="same", activation="swish", name="conv2"),
            layers.AveragePooling2D(2),
            *permute,
            layers.Flatten(),
            layers.Dense(64, activation="swish", name="fc1"),
            layers.Dense(10, name="fc2"),
        ]
    )


def loss() -> Any:
    """Cross entropy of the logits, a mean over samples."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

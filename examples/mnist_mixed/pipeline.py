"""The tf.data side: what happens to one training digit. Only the data process imports this."""

from __future__ import annotations

from typing import Any, Callable, Tuple

import numpy as np

MAX_ROTATION = 0.2  # radians, about 11 degrees
MAX_SHIFT = 2.5  # pixels


def train() -> Callable[[Any], Tuple[Any, Any]]:
    """Return the function that makes one sample; called once, in the data process."""
    import tensorflow as tf

    from digits import load_digits

    (train_images, train_labels), _ = load_digits()
    images = tf.constant(np.moveaxis(train_images, 1, -1))  # TensorFlow puts channels last
    labels = tf.constant(train_labels)

    def sample(s: Any) -> Tuple[Any, Any]:
        """Turn and shift digit ``s.index`` by what ``s.seed`` says: another one each epoch."""
        angle, right, down = tf.unstack(tf.random.stateless_uniform([3], s.seed, -1.0, 1.0))
        cos, sin = tf.cos(angle * MAX_ROTATION), tf.sin(angle * MAX_ROTATION)
        centre = 13.5
        # Row-major affine map from the place of an output pixel to that of its input pixel.
        row_0 = [cos, -sin, centre - cos * centre + sin * centre + right * MAX_SHIFT]
        row_1 = [sin, cos, centre - sin * centre - cos * centre + down * MAX_SHIFT]
        moved = tf.raw_ops.ImageProjectiveTransformV3(
            images=images[s.index][None],
            transforms=[[*row_0, *row_1, 0.0, 0.0]],
            output_shape=[28, 28],
            fill_value=0.0,
            interpolation="BILINEAR",
        )
        return tf.reshape(moved, [1, 28, 28]), labels[s.index]

    return sample

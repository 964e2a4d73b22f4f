"""A tf.data pipeline that costs next to nothing, so that what is measured is the way to torch."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Tuple

SHAPES = {"10 MB": (64, 224, 224, 3), "50 KB": (16, 28, 28, 1)}

MOST_BATCHES_AT_ONCE = 8
"""The data process may ask the pipeline for several small batches at once."""


def sample_of(label: str) -> Callable[[Any], Tuple[Any, Any]]:
    """Rows of one prepared tensor, as many as indices are asked for."""
    import tensorflow as tf

    shape = SHAPES[label]
    dtype = tf.uint8 if label == "10 MB" else tf.float32
    most = shape[0] * (1 if label == "10 MB" else MOST_BATCHES_AT_ONCE)
    images = tf.cast(tf.random.uniform((most, *shape[1:]), maxval=255), dtype)
    labels = tf.zeros(most, tf.int64)

    def sample(s: Any) -> Tuple[Any, Any]:
        count = tf.shape(s.index)[0]
        return images[:count], labels[:count]

    return sample


def large() -> Callable[[Any], Tuple[Any, Any]]:
    return sample_of("10 MB")


def small() -> Callable[[Any], Tuple[Any, Any]]:
    return sample_of("50 KB")


class Batches:
    """The same pipeline as batches of numpy arrays: what a queue or a worker is handed.

    Args:
        label: One of ``SHAPES``.
        count: Batches in one pass.
    """

    def __init__(self, label: str, count: int) -> None:
        self._label = label
        self._count = count
        self._dataset: Any = None

    def __iter__(self) -> Iterator[Any]:
        """Run through it once."""
        import tensorflow as tf

        if self._dataset is None:
            rows = SHAPES[self._label][0]
            sample = sample_of(self._label)
            ids = tf.data.Dataset.range(self._count * rows).batch(rows)
            self._dataset = ids.map(lambda index: sample(_Index(index))).prefetch(2)
        for images, labels in self._dataset:
            yield images.numpy(), labels.numpy()


class _Index:
    def __init__(self, index: Any) -> None:
        self.index = index

"""Factories of tf.data streams for data processes, and a probe of what is warned of."""

from __future__ import annotations

import json
import logging
import sys
from typing import List


def pairs_by_data():
    return _pairs("DATA")


def pairs_by_nothing():
    return _pairs("OFF")


def _pairs(policy):
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(
        tf.data.experimental.AutoShardPolicy, policy
    )
    return tf.data.Dataset.range(8).batch(2).with_options(options)


def words(epoch, seed):
    """21 even numbers in an order of the epoch, with a filter that hides their count."""
    import tensorflow as tf

    numbers = tf.data.Dataset.range(42).filter(lambda k: k % 2 == 0)
    return numbers.shuffle(42, seed=100 * seed + epoch).map(
        lambda k: {"x": tf.stack([k, -k]), "y": tf.cast(k, tf.float32)}, num_parallel_calls=2
    )


def unseeded():
    import tensorflow as tf

    return tf.data.Dataset.range(16).shuffle(16)


def ragged():
    import tensorflow as tf

    return tf.data.Dataset.range(16).map(lambda k: {"word": tf.range(k)})


def strings():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices({"name": ["a", "b"]})


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: List[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def probe():
    """Print what is said about each dataset."""
    import tensorflow as tf

    from unified_ipu_tensorflow.stream import batches

    numbers = tf.data.Dataset.range(6)
    cases = {
        "plain": numbers.shuffle(6, seed=1).map(lambda k: k + 1),
        "unseeded": numbers.shuffle(6),
        "inner": numbers.flat_map(lambda k: tf.data.Dataset.range(k).shuffle(3)),
        "unordered": numbers.map(lambda k: k, num_parallel_calls=2, deterministic=False),
        "cached": numbers.shuffle(6, seed=1).cache().map(lambda k: k),
        "cached_before": numbers.cache().shuffle(6, seed=1),
        "batched": numbers.batch(2).prefetch(1),
        "unbatched": numbers.batch(2).unbatch().prefetch(1),
        "padded": numbers.padded_batch(3),
        "random": numbers.map(lambda k: tf.random.uniform([]) + tf.cast(k, tf.float32)),
    }
    said = {}
    handler = _Lines()
    logging.getLogger("unified_ipu.data").addHandler(handler)
    for name, dataset in cases.items():
        lines = handler.lines = []
        rows = [row for tree in batches(dataset, start=0, rows=4, is_strict=False) for row in tree]
        try:
            list(batches(dataset, start=2, rows=4, is_strict=False))
            error = ""
        except Exception as caught:  # noqa: BLE001 - the test looks at whatever came
            error = f"{type(caught).__name__}: {caught}"
        said[name] = {"rows": len(rows), "warned": lines[0] if lines else "", "resumed": error}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    probe()

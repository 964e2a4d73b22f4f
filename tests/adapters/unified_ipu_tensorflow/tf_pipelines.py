"""Pipelines for the data process of the tests, and a probe that tries the source itself."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict

import numpy as np

SIZE = 40


def train():
    import tensorflow as tf

    has_torch = "torch" in sys.modules
    images = tf.constant(np.arange(SIZE * 6, dtype=np.float32).reshape(SIZE, 2, 3))

    def sample(s):
        noise = tf.random.stateless_uniform([3], s.seed)
        return {
            "x": images[s.index],
            "id": [s.index, (s.seed, noise)],
            "torch": tf.constant(has_torch),
        }

    return sample


def evaluate():
    return lambda s: s.index * 2


def bad_row():
    import tensorflow as tf

    def check(index):
        if index == 17:
            raise KeyError("seventeen is bad")
        return np.float32(index)

    return lambda s: tf.ensure_shape(tf.numpy_function(check, [s.index], tf.float32), [])


def _cases():
    import tensorflow as tf

    dtypes = ["bool", "uint8", "int64", "float16", "float32", "float64", "complex64"]
    return {
        "dtypes": (lambda s: {name: tf.cast([s.index], name) for name in dtypes}, False),
        "tree": (lambda s: {"z": [s.index, (s.index + 1,)], "a": 1.5}, False),
        "batched": (lambda s: (s.index * 10, tf.cast(s.seed, tf.float64)), True),
        "wrong_rows": (lambda s: s.index[1:], True),
        "string": (lambda s: {"x": s.index, "name": tf.strings.as_string(s.index)}, False),
        "ragged": (lambda s: (s.index, tf.ragged.constant([[1], [2, 3]])), False),
        "sparse": (lambda s: tf.sparse.from_dense([s.index]), False),
        "bfloat16": (lambda s: {"x": tf.cast(s.index, tf.bfloat16)}, False),
        "none": (lambda s: (s.index, None), False),
        "unequal": (lambda s: {"x": s.index, "word": tf.range(s.index)}, False),
        "empty_rows": (lambda s: (s.index, tf.zeros([0, 3])), False),
        "no_function": (None, False),
        "random": (lambda s: (s.index, tf.random.uniform([])), False),
    }


def _run(source, count=10, rows=4):
    ids = np.arange(count)[::-1].copy()

    def blocks():
        for start in range(0, count, 3):
            part = ids[start : start + 3]
            yield part, np.stack([part, -part], axis=1)

    return [(got.tolist(), tree) for got, tree in source.open(blocks, rows=rows)]


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return {"tuple": [_plain(child) for child in value]}
    if isinstance(value, list):
        return [_plain(child) for child in value]
    values = np.asarray(value)
    return [str(values.dtype), (values.real if values.dtype.kind == "c" else values).tolist()]


def _try(sample, batched):
    from unified_ipu.data.producer import RowQueue
    from unified_ipu_tensorflow.source import TensorflowSource

    try:
        source = TensorflowSource(lambda: sample, size=10, batched=batched, cores=2)
        rows = [[ids, _plain(tree)] for ids, tree in _run(source)]
        RowQueue(iter(_run(source))).take(10, None)
    except Exception as error:  # noqa: BLE001 - the test looks at whatever came
        return {"error": f"{type(error).__name__}: {error}"}
    return {"rows": rows, "row_bytes": source.row_bytes()}


def _reopen():
    from unified_ipu_tensorflow.source import TensorflowSource

    source: Any = TensorflowSource(lambda: lambda s: s.index, size=10, batched=False, cores=1)
    abandoned = source.open(lambda: iter([(np.arange(9), np.zeros((9, 2), np.int64))]), rows=2)
    first = next(abandoned)[0].tolist()
    abandoned.close()
    return [first, [ids for ids, _ in _run(source, 5, 5)], len(source._passes)]


def probe():
    """Print what each case gives: rows, or the error."""
    results: Dict[str, Any] = {name: _try(*case) for name, case in _cases().items()}
    results["reopened"] = _reopen()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    probe()

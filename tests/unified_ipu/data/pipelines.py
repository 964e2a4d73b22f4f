"""What data processes of the tests import: a source in plain numpy, and pipelines for it."""

from __future__ import annotations

import sys

import numpy as np


class NumpySource:
    """Maps a function over ids without any framework."""

    def __init__(self, function, *, size, batched, cores):
        if not (batched and size and cores):
            raise ValueError("only batched=True here")
        self._sample = function()

    def row_bytes(self):
        return 64

    def open(self, blocks, *, rows):
        ids, seeds = np.empty(0, np.int64), np.empty((0, 2), np.int64)
        for more_ids, more_seeds in blocks():
            ids, seeds = np.concatenate([ids, more_ids]), np.concatenate([seeds, more_seeds])
            while len(ids) >= rows:
                yield ids[:rows], self._sample(ids[:rows], seeds[:rows])
                ids, seeds = ids[rows:], seeds[rows:]
        if len(ids):
            yield ids, self._sample(ids, seeds)


def train():
    return lambda ids, seeds: {"x": np.stack([ids, ids * 10], axis=1), "seed": [seeds]}


def frameworks():
    names = ("torch", "tensorflow", "keras", "onnx")
    return lambda ids, _: np.full((len(ids), len(names)), [name in sys.modules for name in names])


def bad_at_seventeen():
    def sample(ids, _):
        if 17 in ids:
            raise ValueError("seventeen is bad")
        return ids.astype(np.float32)

    return sample


def short_rows():
    return lambda ids, _: ids[1:]


def strings():
    return lambda ids, _: {"x": ids, "name": np.array([str(k) for k in ids])}


def fails():
    raise RuntimeError("no data on this disk")


def stops():
    def sample(ids, _):
        sys.stderr.write("I0000 00:00:1 chatter of a library\nlast words\n")
        sys.exit(3)

    return sample


def slow():
    import time

    def sample(ids, _):
        time.sleep(600)
        return ids

    return sample

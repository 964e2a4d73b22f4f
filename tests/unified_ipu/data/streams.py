"""Factories of streams that data processes of the tests import."""

from __future__ import annotations

import itertools

import numpy as np

_used_up = iter(range(5))


def twelve():
    return iter(range(12))


def forty_two():
    return (np.int64(k) for k in range(42))


def by_epoch(epoch, seed):
    """21 samples in epoch 0, one more in each epoch after it."""
    for k in range(21 + epoch):
        yield {"x": np.array([k, 10 * k]), "epoch": epoch, "seed": seed}


def sixteen():
    return [np.float32(k) for k in range(16)]


def nothing():
    return ()


def endless(epoch):
    return ((epoch, k) for k in itertools.count())


def fails(epoch):
    for k in range(20):
        if k == 17:
            raise ValueError("seventeen is bad")
        yield epoch + k


def shrinks(epoch=0):
    return range(10)


def used_up():
    return _used_up


def no_iterable():
    return 5


def wrong_argument(path):
    return [path]


def ragged():
    return [np.zeros(k) for k in (1, 2, 3)]


def strings():
    return ["a", "b"]


class Batches:
    dataset = sampler = batch_sampler = batch_size = collate_fn = drop_last = None


def dataloader():
    return Batches()

"""Drives replicas directly: the update law in numpy around one or several of them."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Job, MicroBatch, Place
from unified_ipu.plan import Plan, plan_buckets
from unified_ipu_tensorflow import create

keras: Any = tf.keras
layers: Any = tf.keras.layers


def lines(num_elements: int, dtype: str) -> Any:
    """Zeros that start on a 64-byte line, as the reducer's buffers do."""
    size = num_elements * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype)


def ignore(bucket: int) -> None:
    del bucket


class Driver:
    """Replicas of equal models; ``update`` is L1 with the reduction done by numpy."""

    def __init__(self, jobs: Sequence[Job], *, bind: bool = False) -> None:
        places = [Place(num_replicas=len(jobs))] * len(jobs)
        self.replicas: List[Any] = [create().build(j, Plan(), p) for j, p in zip(jobs, places)]
        self.buffers: List[Any] = []
        if len(jobs) > 1 or bind:
            for replica in self.replicas:
                layout = plan_buckets(replica.tensors(), 1024)
                self.buffers.append([lines(b.num_elements, b.dtype) for b in layout.buckets])
                replica.bind(layout.slots, self.buffers[-1])

    def update(self, *per_replica: Any, scale: float = 1.0, seed: int = 0) -> Any:
        """One update; each argument is one replica's list of micro-batches."""
        tallies = []
        for replica, micros in zip(self.replicas, per_replica):
            replica.begin_update()
            for index, micro in enumerate(micros):
                replica.forward_backward(micro, scale=scale, seed=seed + index, ready=ignore)
            tallies.append(replica.finish_update())
        weight = sum(tally.weight for tally in tallies)
        used = [any(flags) for flags in zip(*(tally.used for tally in tallies))]
        factor = 1.0 / (weight * scale)
        if self.buffers:
            for parts in zip(*self.buffers):
                total = sum(part.astype(np.float64) for part in parts) * factor
                for part in parts:
                    part[...] = total
            factor = 1.0
        for replica in self.replicas:
            replica.apply(lr_factor=1.0, used=used, scale=factor)
            replica.end_call(1)
        return sum(tally.loss_sum for tally in tallies) / weight, weight, used


def micro(*tree: Any, index: int = 0) -> MicroBatch:
    batch = tree[0] if len(tree) == 1 else tree
    leaf = batch
    while isinstance(leaf, (dict, tuple, list)):
        leaf = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf[0]
    return MicroBatch(index, batch, len(leaf))


def cut(x: Any, y: Any, *sizes: int) -> List[MicroBatch]:
    """Micro-batches of these sizes from the beginning of the rows."""
    found, start = [], 0
    for index, size in enumerate(sizes):
        found.append(micro(x[start : start + size], y[start : start + size], index=index))
        start += size
    return found


def mlp(dtype: str = "float64") -> Any:
    """Three features, four hidden, one output; the same weights every time."""
    rng = np.random.default_rng(1)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype=dtype),
            layers.Dense(4, activation="tanh", dtype=dtype),
            layers.Dense(1, dtype=dtype),
        ]
    )
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def mean_squared_error() -> Any:
    """In float64, where Keras 3 would cast outputs and targets to float32."""
    try:
        return keras.losses.MeanSquaredError(dtype="float64")
    except TypeError:  # Keras 2 takes them as they are
        return keras.losses.MeanSquaredError()


def data(rows: int, dtype: str = "float64") -> Any:
    rng = np.random.default_rng(2)
    return rng.normal(size=(rows, 3)).astype(dtype), rng.normal(size=(rows, 1)).astype(dtype)


def distance(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Largest relative norm of the difference."""
    norms = [(float(np.linalg.norm(a - b)), float(np.linalg.norm(b))) for a, b in zip(ours, theirs)]
    return max(difference / max(norm, 1e-30) for difference, norm in norms)

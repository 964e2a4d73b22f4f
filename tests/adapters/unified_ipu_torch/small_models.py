"""A small network, data for it, and how to cut and compare."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from unified_ipu.adapter import MicroBatch


def mlp(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def data(rows, seed=1, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 5)).astype(dtype), rng.integers(0, 3, rows)


def cut(x, y, *sizes):
    micros, start = [], 0
    for index, size in enumerate(sizes):
        stop = start + size
        micros.append(MicroBatch(index, (x[start:stop], y[start:stop]), size))
        start = stop
    return micros


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def distance(left, right):
    return max(float((a - b).norm() / b.norm()) for a, b in zip(left, right))

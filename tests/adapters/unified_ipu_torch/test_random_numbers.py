from __future__ import annotations

import numpy as np
import torch
from torch import nn

from unified_ipu.adapter import optim


class Drop(nn.Module):
    """Keeps what its dropout let through."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.w = nn.Parameter(torch.ones(()))
        self.seen = np.zeros(0)

    def forward(self, x):
        self.seen = self.drop(x).numpy().copy()
        return self.w * torch.from_numpy(self.seen)


def masks(build, micro, seeds):
    model = Drop()
    replica = build(model, optimizer=optim.SGD(0.1), loss=lambda o, y: o.mean())
    x = np.ones((4, 16), np.float32)
    found = []
    replica.begin_update()
    for seed in seeds:
        replica.forward_backward(micro(x, x), scale=1.0, seed=seed, ready=print)
        found.append(model.seen.tobytes())
    return found


def test_l3_masks_are_a_function_of_the_seed_only(build, micro):
    first = masks(build, micro, [1, 2, 3, 4])
    assert len(set(first)) == 4
    torch.manual_seed(999)
    torch.rand(7)
    assert masks(build, micro, [4, 2]) == [first[3], first[1]]


def test_seeds_of_63_bits_are_taken(build, micro):
    assert len(set(masks(build, micro, [(1 << 63) - 1, 0, (1 << 64) - 2]))) == 3


def test_evaluation_in_between_does_not_change_the_masks_of_training(build, micro):
    model = Drop()
    replica = build(model, optimizer=optim.SGD(0.1), loss=lambda o, y: o.mean())
    x = np.ones((4, 16), np.float32)
    replica.begin_update()
    replica.forward_backward(micro(x, x), scale=1.0, seed=5, ready=print)
    after_training = torch.get_rng_state()
    replica.evaluate(micro(x, x), {}, seed=6)
    assert torch.equal(torch.get_rng_state(), after_training)
    assert np.array_equal(model.seen, x)  # no dropout in evaluation

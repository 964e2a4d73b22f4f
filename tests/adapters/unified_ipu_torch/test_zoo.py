"""Modules of many kinds: two replicas with unequal micro-batches train as a plain torch loop."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from unified_ipu.adapter import Job, MicroBatch, optim


class Last(nn.Module):
    """Last step of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0][:, -1]


class Attention(nn.Module):
    """Queries, keys and values are the same."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x, need_weights=False)[0].mean(1)


class Scaled(nn.Module):
    """Parameters in a list and a dict, a scalar and an empty one among them."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(4), torch.tensor(2.0)])
        self.named = nn.ParameterDict({"shift": torch.zeros(1, 4), "none": torch.zeros(0, 4)})

    def forward(self, x):
        return x * self.parts[0] * self.parts[1] + self.named["shift"] + self.named["none"].sum()


def dense(rng):
    return rng.standard_normal((7, 4))


def sequence(rng):
    return rng.standard_normal((7, 3, 4))


def image(rng):
    return rng.standard_normal((7, 2, 6, 6))


def tokens(rng):
    return rng.integers(0, 9, (7, 3))


ZOO: Dict[str, Tuple[Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "lstm": (lambda: Last(nn.LSTM(4, 5, num_layers=2, batch_first=True)), sequence),
    "gru both ways": (lambda: Last(nn.GRU(4, 3, batch_first=True, bidirectional=True)), sequence),
    "attention": (Attention, sequence),
    "transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Flatten()
        ),
        sequence,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, groups=2, bias=False),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 2, 2, stride=2),
            nn.InstanceNorm2d(2, affine=True),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        ),
        image,
    ),
    "norms": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU(3 + 1)), dense),
    "weight norm": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3))), dense),
    "orthogonal": (lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4))), dense),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(9, 4, mode="sum"), nn.Linear(4, 2)), tokens),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2)),
        tokens,
    ),
    "lists": (Scaled, dense),
    "bilinear": (lambda: Twice(nn.Bilinear(4, 4, 2)), dense),
}


class Twice(nn.Module):
    """One input as both."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x)


@pytest.mark.parametrize("name", ZOO)
def test_l5_2_two_replicas_train_as_a_plain_loop(drive, name):
    make, data = ZOO[name]
    torch.manual_seed(0)
    plain = make().double()
    models = [copy.deepcopy(plain) for _ in range(2)]
    x = data(np.random.default_rng(0))
    y = np.random.default_rng(1).standard_normal(tuple(plain(torch.from_numpy(x)).shape))
    optimizer = torch.optim.Adam(plain.parameters(), 0.01, eps=1e-2)
    settings = optim.Adam(0.01, eps=1e-2)
    driver = drive([Job(model, settings, nn.MSELoss()) for model in models])

    def micro(start, stop):
        return MicroBatch(0, (x[start:stop], y[start:stop]), stop - start)

    for _ in range(3):
        optimizer.zero_grad()
        expected = nn.functional.mse_loss(plain(torch.from_numpy(x)), torch.from_numpy(y))
        expected.backward()
        optimizer.step()
        loss, _, _ = driver.update([micro(0, 3), micro(3, 4)], [micro(4, 7)])
        assert loss == pytest.approx(expected.item(), rel=1e-11)
    for model in models:
        found = dict(model.named_parameters())
        for key, parameter in plain.named_parameters():
            torch.testing.assert_close(found[key], parameter, rtol=1e-9, atol=1e-11, msg=key)

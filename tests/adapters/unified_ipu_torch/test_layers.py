"""Layers whose gradients come in another way than one dense tensor a backward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.adapters.unified_ipu_torch.small_models import cut, data, distance, mlp, weights
from unified_ipu.adapter import Job, optim


@pytest.mark.parametrize("split", [[[2, 2]], [[2], [2]]])
def test_sparse_gradients_of_an_embedding_are_added_up_densely(drive, split):
    ids = np.array([0, 1, 1, 3])
    models = [nn.Embedding(5, 2, sparse=True).double() for _ in split]
    for model in models:
        nn.init.zeros_(model.weight)
    driver = drive([Job(m, optim.SGD(1.0), lambda o, y: o.mean()) for m in models])
    driver.update(*[cut(ids[2 * i :], ids[2 * i :], *sizes) for i, sizes in enumerate(split)])
    # A mean over rows and features: each row adds 1 / (4 x 2) to its features.
    expected = -torch.tensor([1.0, 2.0, 0.0, 1.0, 0.0]).double()[:, None].expand(5, 2) / 8
    for model in models:
        torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_count_once(drive, reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return checkpoint(self.net, x.requires_grad_(True), use_reentrant=reentrant)

    x, y = data(8)
    plain = [mlp(), mlp()]
    models = [Checkpointed(), Checkpointed()]
    for pair in (plain, models):
        driver = drive([Job(m, optim.SGD(0.1), nn.CrossEntropyLoss()) for m in pair])
        driver.update(cut(x, y, 2, 2), cut(x[4:], y[4:], 4))
    assert distance(weights(models[0]), weights(plain[0])) < 1e-14


def test_channels_last_parameters_train_without_a_warning(drive):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4, 2)).double()

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((6, 3, 4, 4)), rng.integers(0, 2, 6)
    plain = [net(), net()]
    last = [net().to(memory_format=torch.channels_last) for _ in range(2)]
    for pair in (plain, last):
        driver = drive([Job(m, optim.Adam(0.1), nn.CrossEntropyLoss()) for m in pair])
        driver.update(cut(x, y, 4), cut(x[4:], y[4:], 2))
    assert last[0][0].weight.grad.is_contiguous(memory_format=torch.channels_last)
    assert distance(weights(last[0]), weights(plain[0])) < 1e-10


def test_a_tied_parameter_counts_once(drive):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Linear(5, 5, bias=False).double()
            self.second = nn.Linear(5, 5, bias=False).double()
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    x, y = data(6)
    models = [Tied(), Tied(), Tied()]
    drive([Job(models[0], optim.SGD(0.1), nn.CrossEntropyLoss())]).update(cut(x, y, 6))
    pair = drive([Job(m, optim.SGD(0.1), nn.CrossEntropyLoss()) for m in models[1:]])
    pair.update(cut(x, y, 3), cut(x[3:], y[3:], 3))
    assert distance(weights(models[1]), weights(models[0])) < 1e-14
    specs = pair.replicas[0].tensors()
    assert [(s.name, s.tied_to) for s in specs] == [
        ("first.weight", None),
        ("second.weight", "first.weight"),
    ]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_dropout_draws_the_masks_of_the_plain_one(drive, reentrant):
    from torch.utils.checkpoint import checkpoint

    class Dropped(nn.Module):
        def __init__(self, is_checkpointed):
            super().__init__()
            self.net = nn.Sequential(mlp(), nn.Dropout(0.5))
            self.is_checkpointed = is_checkpointed

        def forward(self, x):
            if not self.is_checkpointed:
                return self.net(x)
            return checkpoint(self.net, x.requires_grad_(True), use_reentrant=reentrant)

    x, y = data(8)
    pair = [Dropped(False), Dropped(True)]
    for model in pair:
        driver = drive([Job(model, optim.SGD(0.1), nn.CrossEntropyLoss())])
        for update in range(3):
            driver.update(cut(x, y, 4, 4), seed=10 * update)
    assert distance(weights(pair[1]), weights(pair[0])) < 1e-14

"""The same training by two implementers of the boundary that share no code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unified_ipu_numpy as sample
from unified_ipu.adapter import Job, MicroBatch, optim


@pytest.mark.parametrize(
    "settings",
    [
        optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
        optim.SGD(0.1, momentum=0.9, nesterov=True),
        optim.Adam(0.01, weight_decay=0.01),
        optim.AdamW(0.01),
    ],
    ids=str,
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-4)])
def test_l5_fifty_updates_agree_with_the_numpy_adapter(drive, settings, dtype, tolerance):
    theirs = sample.Mlp([6, 16, 5], dtype=dtype, seed=3)
    ours = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)).to(getattr(torch, dtype))
    ours.load_state_dict({name: torch.tensor(p) for name, p in theirs.parameters.items()})
    class_weights = [0.5, 1.0, 2.0, 1.0, 1.5]
    loss = nn.CrossEntropyLoss(
        weight=torch.tensor(class_weights, dtype=getattr(torch, dtype)), ignore_index=2
    )
    driver = drive([Job(ours, settings, loss)])
    replica = sample.NumpyReplica(
        Job(theirs, settings, sample.SoftmaxCrossEntropy("mean", class_weights, 2))
    )
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, y = rng.standard_normal((12, 6)).astype(dtype), rng.integers(0, 5, 12)
        micros = [MicroBatch(m, (x[4 * m : 4 * m + 4], y[4 * m : 4 * m + 4]), 4) for m in range(3)]
        found = driver.update(micros)
        replica.begin_update()
        for micro in micros:
            replica.forward_backward(micro, scale=1.0, seed=0, ready=print)
        tally = replica.finish_update()
        replica.apply(lr_factor=1.0, used=tally.used, scale=1.0 / tally.weight)
        assert found[1] == tally.weight
        assert found[0] == pytest.approx(tally.loss_sum / tally.weight, rel=tolerance)
    for name, value in ours.state_dict().items():
        expected = theirs.parameters[name]
        assert np.linalg.norm(value.numpy() - expected) <= tolerance * np.linalg.norm(expected)

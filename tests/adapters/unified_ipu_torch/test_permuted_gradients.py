"""Gradients of torch parameters in buckets with other axes: ``Slot.permutation``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu.adapter import Job, MicroBatch, Place, Plan, Slot, optim
from unified_ipu_torch.adapter import TorchAdapter

OIHW_TO_HWIO = (2, 3, 1, 0)


def conv(*, channels_last=False):
    torch.manual_seed(3)
    model = nn.Conv2d(2, 3, (2, 4), bias=False).double()
    if channels_last:
        model.weight.data = model.weight.data.contiguous(memory_format=torch.channels_last)
    return model


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_lie_with_the_axes_of_the_slot_and_are_read_back_so(channels_last):
    model = conv(channels_last=channels_last)
    x = np.random.default_rng(0).normal(size=(6, 2, 2, 4))
    y = np.zeros((6, 3, 1, 1))
    expected = conv()
    loss = expected(torch.from_numpy(x)).square().sum()
    loss.backward()
    gradient = expected.weight.grad
    assert gradient is not None
    wanted = gradient.numpy()
    job = Job(model, optim.SGD(lr=1.0, momentum=0.5), nn.MSELoss(reduction="sum"))
    replica = TorchAdapter().build_replica(job, Plan(), Place(num_replicas=2))
    bucket = np.zeros(64)
    shape = tuple(wanted.shape[axis] for axis in OIHW_TO_HWIO)
    assert shape == (2, 4, 2, 3)
    replica.bind([Slot("weight", 0, 8, shape, OIHW_TO_HWIO)], [bucket])
    for _ in range(2):
        replica.begin_update()
        for index, rows in enumerate((slice(0, 2), slice(2, 6))):
            micro = MicroBatch(index, (x[rows], y[rows]), rows.stop - rows.start)
            replica.forward_backward(micro, scale=1.0, seed=0, ready=lambda bucket: None)
        assert list(replica.finish_update().used) == [True]
    found = bucket[8:56].reshape(shape)
    np.testing.assert_allclose(found, wanted.transpose(OIHW_TO_HWIO), rtol=1e-12, atol=1e-12)
    assert not bucket[:8].any()
    assert not bucket[56:].any()
    sent = np.arange(48.0).reshape(shape)
    bucket[8:56] = sent.ravel()
    before = replica.read(["weight"])["weight"]
    replica.apply(lr_factor=1.0, used=[True])
    moved = before - replica.read(["weight"])["weight"]
    np.testing.assert_allclose(moved, sent.transpose(3, 2, 0, 1), rtol=1e-12, atol=1e-12)
    replica.close()


def test_what_this_rank_did_not_use_counts_as_zero_and_moves_by_what_others_sent():
    model = conv()
    job = Job(model, optim.SGD(lr=1.0), nn.MSELoss())
    replica = TorchAdapter().build_replica(job, Plan(), Place(num_replicas=2))
    bucket = np.full(48, np.nan)
    replica.bind([Slot("weight", 0, 0, (2, 4, 2, 3), OIHW_TO_HWIO)], [bucket])
    replica.begin_update()
    assert list(replica.finish_update().used) == [False]
    assert not bucket.any()
    bucket[:] = 1.0
    before = replica.read(["weight"])["weight"]
    replica.apply(lr_factor=1.0, used=[True])
    moved = before - replica.read(["weight"])["weight"]
    np.testing.assert_allclose(moved, np.ones((3, 2, 2, 4)), rtol=1e-12)
    replica.close()

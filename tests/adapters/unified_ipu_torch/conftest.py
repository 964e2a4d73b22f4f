"""Drives replicas directly: the update law in numpy around one or several of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unified_ipu.adapter import Job, MicroBatch, Place
from unified_ipu.plan import Plan, plan_buckets
from unified_ipu_torch.adapter import TorchAdapter
from unified_ipu_torch.gradients import StagedGradients


def ignore(bucket):
    del bucket


class Driver:
    """Replicas of equal models; ``update`` is L1 with the reduction done by numpy."""

    def __init__(self, jobs, *, staged=False):
        self.replicas = [
            TorchAdapter().build_replica(job, Plan(), Place(num_replicas=len(jobs))) for job in jobs
        ]
        self.buffers = []
        if len(jobs) == 1 and not staged:
            return
        for replica in self.replicas:
            layout = plan_buckets(replica.tensors(), 1024)
            self.buffers.append([np.zeros(b.num_elements, b.dtype) for b in layout.buckets])
            replica.bind(layout.slots, self.buffers[-1])
            if staged:
                replica._gradients.close()
                replica._gradients = StagedGradients(
                    replica._parameters, layout.slots, self.buffers[-1]
                )

    def update(self, *per_replica, scale=1.0, lr_factor=1.0, seed=0):
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
            replica.apply(lr_factor=lr_factor, used=used, scale=factor)
            replica.end_call(1)
        loss = sum(tally.loss_sum for tally in tallies) / weight
        return loss, weight, used


@pytest.fixture
def drive():
    return Driver


@pytest.fixture
def build():
    def make(model, **job):
        return TorchAdapter().build_replica(Job(model, **job), Plan(), Place())

    return make


@pytest.fixture
def micro():
    def make(*tree, index=0, sample_weight=None):
        leaf = tree[0]
        while isinstance(leaf, (dict, tuple, list)):
            leaf = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf[0]
        batch = tree[0] if len(tree) == 1 else tree
        return MicroBatch(index, batch, len(leaf), sample_weight=sample_weight)

    return make


@pytest.fixture(autouse=True)
def _torch_is_left_as_it_was():
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)

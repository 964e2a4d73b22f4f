"""Running statistics and other buffers: torch's own rule, and what all ranks see of them.

Batch norm in torch moves the running variance by the unbiased variance of a micro-batch. While
training each replica keeps the statistics of its own micro-batches; evaluation, prediction and the
end of ``fit`` use their mean over the replicas, and the first rank's value of every other buffer.
"""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest
import torch
from torch import nn

import unified_ipu as ui
from unified_ipu.testing.threads import run_ranks

# Micro-batches of two rows: mean 1, unbiased variance 2; and mean 6, unbiased variance 8.
ROWS = np.array([[0.0], [2.0], [4.0], [8.0]])
OWN = [(0.1, 0.9 + 0.2), (0.6, 0.9 + 0.8)]
SHARED = (0.35, 1.4)


class Normalised(nn.Module):
    """Batch norm, and buffers of other kinds; ``seen`` is assigned anew in every forward."""

    seen: torch.Tensor
    scratch: torch.Tensor

    def __init__(self, rank):
        super().__init__()
        self.norm = nn.BatchNorm1d(1, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.step = rank + 1

    def forward(self, x):
        self.seen = self.seen + self.step
        self.scratch += 1.0
        return self.norm(x)


def statistics(program):
    weights = program.weights()
    return float(weights["norm.running_mean"][0]), float(weights["norm.running_var"][0])


def train_once(world, communicator):
    """One update of two micro-batches, then everything that looks at buffers."""
    plan = ui.Plan().replace(
        mesh={"data": world.world_size},
        batch={"global_batch_size": 4, "micro_batch_size": 2},
        data={"shuffle": False},
    )
    found: Dict[str, Any] = {}
    with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
        model = Normalised(world.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        program = session.compile(model, loss=nn.MSELoss(), optimizer=optimizer)
        train = session.loader(ui.data.arrays(ROWS, ROWS))
        held = session.loader(ui.data.arrays(ROWS, ROWS), train=False, micro_batch_size=1)
        for call in train:
            program.step(call)
        found["own"] = statistics(program)
        found["seen"] = int(program.weights()["seen"])
        found["outputs"] = program.predict(held, gather="all").ravel().tolist()
        found["loss"] = program.evaluate(held)["loss"]
        found["own after"] = statistics(program)
        found["names"] = sorted(program.weights())
        program.fit(train, epochs=1, max_updates=1)
        found["fitted seen"] = model.seen.item()
        found["fitted"] = statistics(program)
        found["scratch"] = model.scratch.tolist()
    return found


def outputs_of(mean, variance):
    return ((ROWS - mean) / np.sqrt(variance + 1e-5)).ravel()


def moved_again(before, batch_mean, batch_variance):
    return 0.9 * before[0] + 0.1 * batch_mean, 0.9 * before[1] + 0.1 * batch_variance


def test_l5_4_running_statistics_move_by_torchs_rule_and_are_shared_by_their_mean():
    results = run_ranks(2, train_once)
    for rank, found in enumerate(results):
        assert found["own"] == pytest.approx(OWN[rank], rel=1e-14)
        assert found["own after"] == found["own"]
        expected = outputs_of(*SHARED)
        assert found["outputs"] == pytest.approx(expected.tolist(), rel=1e-13)
        assert found["loss"] == pytest.approx(float(np.mean((expected - ROWS.ravel()) ** 2)))
        assert found["seen"] == rank + 1
        assert found["names"] == [
            *("norm.bias", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var"),
            *("norm.weight", "seen"),
        ]
    again = [moved_again(OWN[0], 1.0, 2.0), moved_again(OWN[1], 6.0, 8.0)]
    for found in results:
        assert found["fitted"] == pytest.approx(np.mean(again, axis=0).tolist(), rel=1e-13)
        assert found["fitted seen"] == 2
        assert found["scratch"] == [2.0, 2.0], "what is not saved stays each rank's own"


def test_l5_4_a_replica_that_never_had_rows_does_not_count_in_the_mean(recwarn):
    results = run_ranks(3, train_once)
    assert results[2]["own"] == (0.0, 1.0)
    for found in results:
        expected = outputs_of(*SHARED)
        assert found["outputs"] == pytest.approx(expected.tolist(), rel=1e-13)
        again = [moved_again(OWN[0], 1.0, 2.0), moved_again(OWN[1], 6.0, 8.0)]
        assert found["fitted"] == pytest.approx(np.mean(again, axis=0).tolist(), rel=1e-13)


def test_one_rank_accumulates_statistics_over_its_micro_batches():
    (found,) = run_ranks(1, train_once)
    assert found["own"] == pytest.approx(moved_again(OWN[0], 6.0, 8.0), rel=1e-14)


def test_l1_12_training_mode_is_kept_for_what_the_user_froze(drive):
    from unified_ipu.adapter import Job, MicroBatch, optim

    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)).double()
    model.get_submodule("0").eval()
    driver = drive([Job(model, optim.SGD(0.1), nn.MSELoss())])
    driver.update([MicroBatch(0, (ROWS, ROWS), 4)])
    assert model.get_buffer("0.running_mean").item() == 0.0
    assert model.get_buffer("0.num_batches_tracked").item() == 0

"""The update law at the level of one and several replicas."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.adapters.unified_ipu_torch.small_models import cut, data, distance, mlp, weights
from unified_ipu.adapter import Job, Loss, MicroBatch, optim
from unified_ipu.errors import ConfigError
from unified_ipu_torch.gradients import squared_norm


def test_l1_one_micro_batch_gives_the_weights_of_the_bare_loop_bit_for_bit(drive):
    model = mlp(dtype=torch.float32)
    bare = copy.deepcopy(model)
    x, y = data(16, dtype=np.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    driver = drive([Job(model, optimizer, nn.CrossEntropyLoss())])
    bare_optimizer = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        loss, _, _ = driver.update(cut(x, y, 16), scale=1 / 16)
        bare_optimizer.zero_grad()
        expected = functional.cross_entropy(bare(torch.from_numpy(x)), torch.from_numpy(y))
        expected.backward()
        bare_optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(bare)))


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(
    "split", [[[11]], [[4, 4, 3]], [[1] * 11], [[6], [5]], [[4, 2], [5], []], [[], [11]]]
)
def test_l1_every_split_gives_the_update_of_the_whole(drive, split, staged):
    x, y = data(11)
    whole = mlp()
    whole_driver = drive([Job(whole, optim.SGD(0.1, momentum=0.9), nn.CrossEntropyLoss())])
    models = [mlp() for _ in split]
    driver = drive(
        [Job(m, optim.SGD(0.1, momentum=0.9), nn.CrossEntropyLoss()) for m in models],
        staged=staged,
    )
    for _ in range(3):
        expected = whole_driver.update(cut(x, y, 11))
        start, parts = 0, []
        for sizes in split:
            stop = start + sum(sizes)
            parts.append(cut(x[start:stop], y[start:stop], *sizes))
            start = stop
        found = driver.update(*parts, scale=1 / 8)
        assert found[0] == pytest.approx(expected[0], rel=1e-12)
        assert found[1] == 11.0
    for model in models:
        assert distance(weights(model), weights(whole)) < 1e-12


class TokenLoss(nn.Module):
    """Log-probabilities whose loss a token is its input times one weight."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return torch.stack([-x * self.w, -x * self.w], 1)


@pytest.mark.case("O-G1")
@pytest.mark.parametrize("split", [[[1, 1]], [[1], [1]], [[2]]])
def test_l1_a_mean_over_counted_tokens_is_not_a_mean_of_means(drive, split):
    x = np.stack([np.full(100, 2.0), np.full(100, 1.0)])
    y = np.full((2, 100), -100)
    y[0, :10] = 0
    y[1, :] = 1
    models = [TokenLoss() for _ in split]
    driver = drive([Job(m, optim.SGD(1.0), nn.NLLLoss()) for m in models])
    parts = [cut(x[i:], y[i:], *sizes) for i, sizes in enumerate(split)]
    loss, weight, _ = driver.update(*parts)
    assert loss == pytest.approx(120 / 110, rel=1e-14)
    assert weight == 110.0
    for model in models:
        assert (1.0 - model.w).item() == pytest.approx(120 / 110, rel=1e-14)  # the gradient


class Scalar(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def forward(self, x):
        return self.w * x


@pytest.mark.case("O-G3")
def test_l1_decay_and_step_counter_move_once_an_update(drive):
    ones = np.ones(2)
    decayed = Scalar(1.0)
    driver = drive([Job(decayed, optim.AdamW(0.1, weight_decay=0.5), lambda o, y: (o * 0).mean())])
    driver.update([MicroBatch(m, (ones, ones), 2) for m in range(3)])
    assert decayed.w.item() == pytest.approx(0.95, rel=1e-12)
    moved = Scalar(0.0)
    driver = drive([Job(moved, optim.Adam(0.1), lambda o, y: o.mean())])
    for _ in range(2):
        driver.update([MicroBatch(m, (ones, ones), 2) for m in range(3)])
    assert moved.w.item() == pytest.approx(-0.2, abs=1e-6)


class Branches(nn.Module):
    """Layer a for even keys, b for odd ones, c never."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.b = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.c = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, key, x):
        return x * (self.a if int(key[0]) % 2 == 0 else self.b)


@pytest.mark.case("O-G5")
@pytest.mark.parametrize("staged", [False, True])
def test_l1_layers_used_in_one_pass_count_and_unused_ones_do_not_move(drive, staged):
    models = [Branches(), Branches()]
    driver = drive(
        [Job(m, optim.AdamW(0.1, weight_decay=0.5), lambda o, y: o.mean()) for m in models],
        staged=staged,
    )
    for replica in driver.replicas:
        replica.begin_update()
    parts = [
        [MicroBatch(m, ((np.array([m]), np.array([1.0 + rank])), np.zeros(1)), 1) for m in range(2)]
        for rank in range(2)
    ]
    _, weight, used = driver.update(*parts)
    # Sum over the passes, divided by W = 4: half of the sum over passes and mean over ranks.
    assert weight == 4.0
    assert used == [True, True, False]
    for model in models:
        for parameter in (model.a, model.b):
            assert parameter.grad is not None
            assert float(parameter.grad) == pytest.approx(3 / 4)
        assert model.c.item() == 1.0  # decay would have made it 0.95
        assert model.a.item() != 1.0
    names = {spec.name for spec in driver.replicas[0].tensors()}
    assert "a/exp_avg" in names
    assert "c/exp_avg" not in names


def test_a_parameter_that_only_another_rank_used_moves_here_too(drive):
    models = [Branches(), Branches()]
    driver = drive([Job(m, optim.SGD(1.0), lambda o, y: o.mean()) for m in models])
    one = np.ones(1)
    first = [MicroBatch(0, ((np.array([0]), one), one), 1)]
    second = [MicroBatch(1, ((np.array([1]), one * 3), one), 1)]
    _, _, used = driver.update(first, second)
    assert used == [True, True, False]
    for model in models:
        assert model.a.item() == pytest.approx(0.5)
        assert model.b.item() == pytest.approx(-0.5)


def test_l1_a_micro_batch_of_ignored_targets_is_not_run(drive):
    ran = []

    class Watched(nn.Linear):
        def forward(self, input):  # noqa: A002 torch's name
            ran.append(len(input))
            return super().forward(input)

    model = Watched(5, 3).double()
    driver = drive([Job(model, optim.SGD(0.1), nn.CrossEntropyLoss())])
    x, y = data(6)
    y[:4] = -100
    loss, weight, _ = driver.update(cut(x, y, 4, 2))
    assert ran == [2]
    assert weight == 2.0
    assert np.isfinite(loss)


@pytest.mark.parametrize("replicas", [1, 2])
def test_zero_grad_in_an_objective_loses_nothing(drive, replicas):
    x, y = data(6)

    def plain(model, batch):
        out = model(batch[0])
        return Loss(functional.cross_entropy(out, batch[1], reduction="sum"), len(batch[1]))

    def clearing(model, batch):
        loss = plain(model, batch)
        model.zero_grad()
        return loss

    found = []
    for objective in (plain, clearing):
        models = [mlp() for _ in range(replicas)]
        driver = drive([Job(m, optim.SGD(0.1), objective=objective) for m in models])
        driver.update(*[cut(x, y, 2, 2, 2) for _ in range(replicas)])
        found.append(weights(models[0]))
    assert distance(*found) < 1e-14


def test_a_gradient_that_autograd_replaced_is_copied_back(drive):
    models = [Scalar(1.0), Scalar(1.0)]
    driver = drive([Job(m, optim.SGD(1.0), lambda o, y: o.sum()) for m in models])
    replica = driver.replicas[0]
    replica.begin_update()
    models[0].w.grad = torch.tensor(1.0, dtype=torch.float64)
    replica._gradients.collect()
    view = models[0].w.grad
    models[0].w.grad = torch.tensor(5.0, dtype=torch.float64)
    replica._gradients.collect()
    assert models[0].w.grad is view
    assert float(view) == 5.0


def test_a_bucket_holds_nothing_of_the_update_before(drive):
    models = [Scalar(1.0), Scalar(1.0)]
    driver = drive([Job(m, optim.SGD(1.0), lambda o, y: o.sum()) for m in models])
    gradients = driver.replicas[0]._gradients
    for is_used in (True, False):
        gradients.begin()
        gradients.prepare()
        if is_used:
            models[0].w.grad = torch.tensor(3.0, dtype=torch.float64)
        gradients.collect()
        assert gradients.finish() == [is_used]
        gradients.receive()
        found = models[0].w.grad
        assert found is not None
        assert found.item() == (3.0 if is_used else 0.0)


def test_gradients_of_another_programs_parameters_are_dropped(build, micro):
    generator, judge = nn.Linear(2, 2).double(), nn.Linear(2, 1).double()
    both = nn.ModuleDict({"generator": generator, "judge": judge})

    def objective(model, batch):
        return Loss(sum=model["judge"](model["generator"](batch)).sum(), weight=len(batch))

    replica = build(
        both, optimizer=torch.optim.SGD(generator.parameters(), 0.1), objective=objective
    )
    replica.begin_update()
    replica.forward_backward(micro(np.ones((3, 2))), scale=1.0, seed=0, ready=print)
    tally = replica.finish_update()
    assert tally.used == [True, True]
    assert judge.weight.grad is None
    assert [s.name for s in replica.tensors() if s.trainable] == [
        "generator.weight",
        "generator.bias",
    ]


def test_a_loss_that_depends_on_nothing_trained_is_refused(build, micro):
    replica = build(mlp(), optimizer=optim.SGD(0.1), loss=lambda o, y: o.detach().mean())
    replica.begin_update()
    with pytest.raises(ConfigError, match=r"detach\(\)"):
        replica.forward_backward(micro(*data(4)), scale=1.0, seed=0, ready=print)


def test_training_without_an_optimizer_is_refused(build, micro):
    replica = build(mlp(), loss=nn.CrossEntropyLoss())
    with pytest.raises(ConfigError, match="no optimizer"):
        replica.forward_backward(micro(*data(4)), scale=1.0, seed=0, ready=print)


def test_the_norm_of_gradients_beyond_float32_is_finite(build, micro):
    model = nn.Linear(1, 1, bias=False)
    replica = build(model, optimizer=optim.SGD(0.1), loss=lambda o, y: o.mean())
    replica.begin_update()
    replica.forward_backward(
        micro(np.full((1, 1), 1e30, np.float32), np.zeros(1)), scale=1.0, seed=0, ready=print
    )
    replica.finish_update()
    assert replica.squared_norm() == pytest.approx(1e60, rel=1e-6)
    assert replica.non_finite() == []


def test_the_norm_takes_gradients_in_any_order_of_their_axes():
    gradient = torch.full((2, 3), 1e30).t()
    assert squared_norm([gradient]) == pytest.approx(6e60, rel=1e-6)
    assert squared_norm([torch.arange(6.0).view(2, 3).t(), torch.ones(2)]) == 57.0


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_is_seen_and_named(build, micro, value):
    model = nn.Linear(1, 1)
    replica = build(model, optimizer=optim.SGD(0.1), loss=lambda o, y: o.mean())
    replica.begin_update()
    replica.forward_backward(
        micro(np.full((1, 1), value, np.float32), np.zeros(1)), scale=1.0, seed=0, ready=print
    )
    replica.finish_update()
    assert not np.isfinite(replica.squared_norm())
    assert replica.non_finite() == ["weight"]


def test_the_norm_of_huge_float64_gradients_is_still_finite(build, micro):
    model = nn.Linear(1, 1, bias=False).double()
    replica = build(model, optimizer=optim.SGD(0.1), loss=lambda o, y: o.mean())
    replica.begin_update()
    replica.forward_backward(
        micro(np.full((1, 1), 1e200), np.zeros(1)), scale=1.0, seed=0, ready=print
    )
    replica.finish_update()
    assert np.isfinite(replica.squared_norm())


def test_close_gives_the_buckets_back_and_keeps_the_weights(drive):
    models = [mlp(), mlp()]
    driver = drive([Job(m, optim.SGD(0.1), nn.CrossEntropyLoss()) for m in models])
    x, y = data(4)
    driver.update(cut(x, y, 2), cut(x, y, 2))
    before = weights(models[0])
    driver.replicas[0].close()
    assert all(p.grad is None for p in models[0].parameters())
    assert distance(weights(models[0]), before) == 0.0

"""Updates of the emulated device's optimizers: against torch's own, and oracles in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from unified_ipu_torch.emulated import poptorch

ROWS = [[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25], [2.0, 1.0]]
START = [0.75, -1.5]


class Model(torch.nn.Module):
    """Loss sum(w^2 x) of a micro-batch of one row: its gradient is 2 w x."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(START, dtype=dtype))

    def forward(self, x):
        return poptorch.identity_loss(self.w * self.w * x, reduction="sum")


def single(values):
    return np.array(values, dtype=np.float32)


def on_device(make, *, updates=4, accumulation=1, dtype=torch.float32):
    model = Model(dtype)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(accumulation)
    executor = poptorch.trainingModel(model, opts, make(model.parameters()))
    for update in range(updates):
        rows = [ROWS[(update * accumulation + a) % 4] for a in range(accumulation)]
        executor(torch.tensor(rows, dtype=dtype))
    return model.w.detach().clone()


def on_host(make, *, updates=4, max_norm=None):
    weight = torch.nn.Parameter(torch.tensor(START))
    optimizer = make([weight])
    for update in range(updates):
        optimizer.zero_grad()
        (weight * weight * torch.tensor(ROWS[update % 4])).sum().backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_([weight], max_norm)
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    ],
)
def test_an_optimizer_of_torch_does_what_it_does_on_the_host(make):
    torch.testing.assert_close(on_device(make), on_host(make), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_combined_accumulators_with_constant_values_are_sgd_with_momentum(scale):
    def combined(parameters):
        return poptorch.optim.SGD(
            parameters,
            lr=0.1,
            momentum=0.9,
            weight_decay=0.01,
            use_combined_accum=True,
            loss_scaling=scale,
        )

    def plain(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)

    torch.testing.assert_close(on_device(combined), on_host(plain), rtol=2e-6, atol=1e-7)


def test_combined_accumulators_use_a_changed_momentum_one_update_late():
    # Gradient 1 in each update, lr 1: v1 = 1, v2 = m v1 + 1 with the m of the update before.
    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return poptorch.identity_loss(self.w * x, reduction="sum")

    model = Linear()
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=1.0, momentum=0.5, use_combined_accum=True
    )
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(1))
    optimizer.param_groups[0]["momentum"] = 0.0
    executor.setOptimizer(optimizer)
    executor(torch.ones(1))
    assert model.w.item() == -1.0 - 1.5
    executor(torch.ones(1))
    assert model.w.item() == -2.5 - 1.0


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_gradients_are_clipped_by_the_global_norm_of_the_reduced_gradient(name):
    def ours(parameters):
        return getattr(poptorch.optim, name)(parameters, lr=0.1, max_grad_norm=0.5)

    def theirs(parameters):
        return getattr(torch.optim, name)(parameters, lr=0.1)

    # torch divides by norm + 1e-6.
    expected = on_host(theirs, max_norm=0.5)
    torch.testing.assert_close(on_device(ours), expected, rtol=1e-5, atol=1e-6)


class Linear(torch.nn.Module):
    """Loss w x: its gradient is x."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return poptorch.identity_loss(self.w * x, reduction="sum")


def steps(rows, accumulation=1, **settings):
    model, opts = Linear(), poptorch.Options()
    opts.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0, **settings)
    executor = poptorch.trainingModel(model, opts, optimizer)
    found = [0.0]
    for row in rows:
        executor(torch.tensor(row))
        found.append(model.w.item())
    return [before - after for before, after in zip(found, found[1:])]


@pytest.mark.parametrize("is_combined", [True, False])
def test_with_momentum_sgd_clips_the_velocity_where_it_is_used(is_combined):
    # Velocities 2, 0.5 * 2 + 3 = 4, 0.5 * 4 + 0 = 2, each cut to 1.5 when it is subtracted.
    settings = {"momentum": 0.5, "max_grad_norm": 1.5, "use_combined_accum": is_combined}
    assert steps([[2.0], [3.0], [0.0]], **settings) == [1.5, 1.5, 1.5]


def test_sgd_clips_what_the_loss_scale_and_a_mean_are_still_in():
    # Sum 2 + 4 over two micro-batches, times 8, cut to 12, then divided by 8 and 2.
    found = steps([[2.0, 4.0]], accumulation=2, max_grad_norm=12.0, loss_scaling=8.0)
    assert found == [12.0 / 8.0 / 2.0]


def test_rmsprop_as_tensorflow_has_it():
    def make(parameters):
        return poptorch.optim.RMSprop(
            parameters, lr=0.01, momentum=0.5, eps=0.1, use_tf_variant=True
        )

    weight = np.array(START)
    squares, velocity = np.zeros(2), np.zeros(2)
    for row in np.array(ROWS):
        gradient = 2.0 * weight * row
        squares = 0.99 * squares + 0.01 * gradient**2
        velocity = 0.5 * velocity + 0.01 * gradient / np.sqrt(squares + 0.1)
        weight = weight - velocity
    np.testing.assert_allclose(on_device(make).numpy(), weight, rtol=2e-6)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("most", [65500.0, 0.5])
def test_lamb_against_an_oracle(corrected, most):
    def make(parameters):
        return poptorch.optim.LAMB(
            parameters,
            lr=0.1,
            weight_decay=0.1,
            bias_correction=corrected,
            max_weight_norm=most,
        )

    weight = np.array(START)
    first, second = np.zeros(2), np.zeros(2)
    for step, row in enumerate(np.array(ROWS), start=1):
        gradient = 2.0 * weight * row
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        one, two = (1 - 0.9**step, 1 - 0.999**step) if corrected else (1.0, 1.0)
        update = first / one / (np.sqrt(second / two) + 1e-8) + 0.1 * weight
        size = min(float(np.linalg.norm(weight)), most)
        weight = weight - 0.1 * size / float(np.linalg.norm(update)) * update
    np.testing.assert_allclose(on_device(make).numpy(), weight, rtol=5e-6)


def test_a_loss_scale_leaves_the_update_and_the_returned_loss_alone():
    def scaled(parameters):
        return poptorch.optim.AdamW(parameters, lr=0.1, loss_scaling=4096.0)

    def plain(parameters):
        return torch.optim.AdamW(parameters, lr=0.1)

    torch.testing.assert_close(on_device(scaled), on_host(plain), rtol=2e-6, atol=1e-7)
    model = Model()
    executor = poptorch.trainingModel(model, optimizer=scaled(model.parameters()))
    assert executor(torch.tensor([ROWS[0]])).item() == 0.75**2 - 2.0 * 1.5**2


def test_accumulators_in_half_round_and_their_means_are_kept_running():
    def half(parameters):
        return poptorch.optim.SGD(parameters, lr=1.0, accum_type=torch.float16)

    # By hand: g = 2 w x of two rows, each rounded to half, then halved and added.
    rows = 2 * single(START) * single(ROWS[:2]) / 7
    expected = single(START) - (
        np.float16(rows[0]) / np.float16(2) + np.float16(rows[1]) / np.float16(2)
    ).astype(np.float32)

    class Seventh(Model):
        def forward(self, x):
            return poptorch.identity_loss(self.w * self.w * x / 7.0, reduction="sum")

    model, opts = Seventh(), poptorch.Options()
    opts.Training.gradientAccumulation(2)
    executor = poptorch.trainingModel(model, opts, half(model.parameters()))
    executor(torch.tensor(ROWS[:2]))
    strategy = executor.options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Running
    exact = single(START) - rows.mean(axis=0)
    np.testing.assert_allclose(model.w.detach().numpy(), expected, rtol=2e-4)
    assert not np.allclose(model.w.detach().numpy(), exact, rtol=1e-6)


def test_sums_in_half_overflow_where_running_means_do_not():
    class Big(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return poptorch.identity_loss(self.w * x, reduction="sum")

    def trained(combined):
        model, opts = Big(), poptorch.Options()
        opts.Training.gradientAccumulation(4)
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=1.0, accum_type=torch.float16, use_combined_accum=combined
        )
        executor = poptorch.trainingModel(model, opts, optimizer)
        executor(torch.full((4,), 30000.0))
        return model.w.item()

    assert trained(combined=False) == pytest.approx(-30000.0, rel=1e-3)
    assert math.isinf(trained(combined=True))


def test_a_model_in_half_stays_in_half():
    found = on_device(lambda p: torch.optim.SGD(p, lr=0.1), dtype=torch.float16)
    assert found.dtype == torch.float16
    expected = on_host(lambda p: torch.optim.SGD(p, lr=0.1))
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-3)


def test_a_model_in_double_is_computed_in_single():
    found = on_device(lambda p: torch.optim.SGD(p, lr=0.1), dtype=torch.float64)
    assert found.dtype == torch.float64
    assert torch.equal(found, found.float().double())


def test_decoupled_decay_without_bias_correction_keeps_the_correction_as_in_the_sdk():
    def ours(parameters):
        return poptorch.optim.AdamW(parameters, lr=0.1, bias_correction=False)

    expected = on_host(lambda p: torch.optim.AdamW(p, lr=0.1))
    torch.testing.assert_close(on_device(ours), expected, rtol=2e-6, atol=1e-7)


def test_values_of_groups_go_to_their_own_weights():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(1))
            self.b = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return poptorch.identity_loss(self.a * x + self.b * x, reduction="sum")

    model = Two()
    optimizer = torch.optim.SGD(
        [{"params": [model.a], "lr": 0.5}, {"params": [model.b], "lr": 0.25}], lr=0.1
    )
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(1))
    assert (model.a.item(), model.b.item()) == (0.5, 0.75)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    optimizer.step()
    scheduler.step()
    executor.copyWeightsToDevice()
    executor.setOptimizer(optimizer)
    executor(torch.ones(1))
    assert (model.a.item(), model.b.item()) == (0.25, 0.625)

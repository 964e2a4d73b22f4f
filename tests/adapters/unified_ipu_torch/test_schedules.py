"""torch's own schedulers: stepped once an update, whatever the replicas and micro-batches."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from unified_ipu.adapter import Job, MicroBatch
from unified_ipu.testing.threads import run_ranks

SAMPLES = 24


def one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=9)  # moves momentum as well


def in_sequence(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    return lr_scheduler.SequentialLR(
        optimizer, [warm, lr_scheduler.ExponentialLR(optimizer, 0.5)], milestones=[2]
    )


def chained(optimizer):
    return lr_scheduler.ChainedScheduler(
        [
            lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step)),
            lr_scheduler.ExponentialLR(optimizer, 0.9),
        ]
    )


SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.1),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, [lambda k: 0.9**k, lambda k: 1.0 / (k + 1)]),
    "chained": chained,
    "one cycle": one_cycle,
    "sequential": in_sequence,
    "cosine restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, total_iters=5, power=2.0),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def optimizer_of(model):
    head: Dict[str, Any] = {"params": list(model[2].parameters()), "lr": 0.05}
    body: Dict[str, Any] = {"params": list(model[0].parameters())}
    return torch.optim.SGD([body, head], lr=0.1, momentum=0.9, weight_decay=0.01)


def data():
    rng = np.random.default_rng(4)
    return rng.standard_normal((SAMPLES, 3)), rng.standard_normal((SAMPLES, 2))


def bare_loop(schedule_of):
    """Rates at each update and the final weights of a plain torch loop."""
    model = network()
    optimizer = optimizer_of(model)
    schedule = schedule_of(optimizer)
    x, y = (torch.from_numpy(array) for array in data())
    rates = []
    for start in range(0, SAMPLES, 4):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[start : start + 4]), y[start : start + 4])
        loss.backward()
        optimizer.step()
        schedule.step()
    return rates, model.state_dict()


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("split", [[[4]], [[1, 1], [2]]], ids=["alone", "two replicas"])
def test_l2_11_training_under_a_schedule_is_the_bare_loop(drive, name, split):
    rates, expected = bare_loop(SCHEDULES[name])
    jobs: List[Any] = []
    for _ in split:
        model = network()
        optimizer = optimizer_of(model)
        schedule = SCHEDULES[name](optimizer)
        jobs.append(Job(model, optimizer, nn.MSELoss(), schedule=schedule))
    driver = drive(jobs)
    x, y = data()
    for update, start in enumerate(range(0, SAMPLES, 4)):
        found = driver.replicas[-1].learning_rates()
        assert found == pytest.approx(rates[update], rel=1e-14)
        first = start
        parts: List[Any] = []
        for sizes in split:
            parts.append([])
            for size in sizes:
                cut = slice(first, first + size)
                parts[-1].append(MicroBatch(0, (x[cut], y[cut]), size))
                first += size
        driver.update(*parts)
    for job in jobs:
        for key, tensor in job.model.state_dict().items():
            torch.testing.assert_close(tensor, expected[key], rtol=1e-12, atol=1e-14)


@pytest.mark.case("O-G8")
@pytest.mark.parametrize("schedule", ["step", "lambda", "sequential"])
def test_l2_11_two_replicas_with_two_micro_batches_halve_the_rate_four_times(schedule):
    makes = {
        "step": lambda o: lr_scheduler.StepLR(o, 1, gamma=0.5),
        "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
        "sequential": lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ExponentialLR(o, 0.5) for _ in range(2)], milestones=[100]
        ),
    }

    def run(world, communicator):
        import unified_ipu as ui

        plan = ui.Plan().replace(
            mesh={"data": 2}, batch={"global_batch_size": 4, "micro_batch_size": 1}
        )
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            model = nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            program = session.compile(
                model, loss=nn.MSELoss(), optimizer=optimizer, schedule=makes[schedule](optimizer)
            )
            zeros = np.zeros((16, 1), np.float32)  # 8 micro-batches a rank
            lrs = [program.step(call).lr for call in session.loader(ui.data.arrays(zeros, zeros))]
            return lrs, optimizer.param_groups[0]["lr"]

    assert run_ranks(2, run) == [([1.0, 0.5, 0.25, 0.125], 0.0625)] * 2

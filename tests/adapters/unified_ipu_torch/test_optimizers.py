from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu.adapter import Job, MicroBatch, optim
from unified_ipu.errors import ConfigError
from unified_ipu_torch.optimizers import follow_parameters

X = np.random.default_rng(0).standard_normal((8, 3))
Y = np.random.default_rng(1).standard_normal((8, 2))


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def oracle(settings, w, gradient, updates):
    """The documented rules in plain numpy, one tensor, a gradient that depends on the weights."""
    w = w.copy()
    velocity, first, second = None, np.zeros_like(w), np.zeros_like(w)
    for step in range(1, updates + 1):
        g = gradient(w)
        if isinstance(settings, optim.AdamW):
            w -= settings.lr * settings.weight_decay * w
        else:
            g = g + settings.weight_decay * w
        if isinstance(settings, optim.Adam):
            first = settings.betas[0] * first + (1 - settings.betas[0]) * g
            second = settings.betas[1] * second + (1 - settings.betas[1]) * g * g
            m_hat = first / (1 - settings.betas[0] ** step)
            v_hat = second / (1 - settings.betas[1] ** step)
            w -= settings.lr * m_hat / (np.sqrt(v_hat) + settings.eps)
            continue
        if settings.momentum:
            first_step = velocity is None
            velocity = (
                g if first_step else settings.momentum * velocity + (1 - settings.dampening) * g
            )
            g = g + settings.momentum * velocity if settings.nesterov else velocity
        w -= settings.lr * g
    return w


SETTINGS = [
    optim.SGD(0.1),
    optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    optim.SGD(0.1, momentum=0.9, dampening=0.3),
    optim.SGD(0.1, momentum=0.9, nesterov=True),
    optim.Adam(0.05, weight_decay=0.1),
    optim.Adam(0.05, betas=(0.8, 0.95), eps=1e-3),
    optim.AdamW(0.05, weight_decay=0.1),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_l5_fifty_updates_follow_the_documented_rule(drive, settings, count):
    models = [nn.Linear(3, 2, bias=False).double() for _ in range(count)]
    for model in models:
        nn.init.constant_(model.weight, 0.3)
    driver = drive([Job(m, settings, nn.MSELoss()) for m in models])
    parts = [[MicroBatch(0, (X[i::count], Y[i::count]), 8 // count)] for i in range(count)]
    for _ in range(50):
        driver.update(*parts)

    def gradient(w):
        return 2 * (X @ w.T - Y).T @ X / Y.size

    expected = oracle(settings, np.full((2, 3), 0.3), gradient, 50)
    for model in models:
        found = model.weight.detach().numpy()
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-12


def test_groups_keep_their_rates_under_a_factor_that_is_put_back(drive):
    model = linear()
    optimizer = torch.optim.SGD(
        [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 0.5}], lr=1.0
    )
    schedule = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.5)
    driver = drive([Job(model, optimizer, lambda o, y: o.mean(), schedule=schedule)])
    rates = []
    ones = np.ones((2, 3))
    for _ in range(4):
        before = model.weight.detach().clone(), model.bias.detach().clone()
        driver.update([MicroBatch(0, (ones, ones), 2)], lr_factor=0.1)
        moved = [float((b - p.detach()).abs().max()) for b, p in zip(before, model.parameters())]
        rates.append(moved[0] * 2)
        assert moved[1] == pytest.approx(moved[0] / 2)
    assert rates == pytest.approx([0.1, 0.05, 0.025, 0.0125])
    assert driver.replicas[0].learning_rates() == [0.0625, 0.03125]


def test_rates_held_as_tensors_are_put_back_too(drive):
    model = linear()
    rate = torch.tensor(0.5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    driver = drive([Job(model, optimizer, nn.MSELoss())])
    driver.update([MicroBatch(0, (X, Y), 8)], lr_factor=0.1)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.5


def test_the_scheduler_steps_once_for_each_update_that_happened(build):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    replica = build(model, optimizer=optimizer, loss=nn.MSELoss(), schedule=schedule)
    replica.begin_update()
    replica.forward_backward(MicroBatch(0, (X, Y), 8), scale=1.0, seed=0, ready=print)
    replica.apply(lr_factor=1.0, used=replica.finish_update().used)
    replica.end_call(0)
    assert replica.learning_rates() == [1.0]
    replica.end_call(3)
    assert replica.learning_rates() == [0.125]
    assert replica.scalars()["schedule"]["last_epoch"] == 3


def test_frozen_parameters_and_those_outside_the_optimizer_do_not_move(drive):
    model = nn.Sequential(linear(), nn.Linear(2, 2).double(), nn.Linear(2, 2).double())
    model[1].requires_grad_(False)
    outside = list(model[0].parameters())
    optimizer = torch.optim.SGD([*model[1].parameters(), *model[2].parameters()], lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    driver = drive([Job(model, optimizer, nn.MSELoss())])
    driver.update([MicroBatch(0, (X, Y), 8)])
    moved = [not torch.equal(p, b) for p, b in zip(model.parameters(), before)]
    assert moved == [False] * 4 + [True] * 2
    assert all(p.grad is None for p in outside)


def test_training_nothing_is_refused(build):
    with pytest.raises(ConfigError, match="no parameter to train"):
        build(linear(), optimizer=optim.SGD(0.1), trainable=lambda name: False, loss=nn.MSELoss())


def test_trainable_leaves_the_rest_alone(drive):
    model = linear()
    bias = model.bias.detach().clone()
    driver = drive([Job(model, optim.SGD(0.1), nn.MSELoss(), trainable=["weight"])])
    driver.update([MicroBatch(0, (X, Y), 8)])
    assert torch.equal(model.bias, bias)
    assert [s.trainable for s in driver.replicas[0].tensors()[:2]] == [True, False]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: torch.optim.LBFGS(m.parameters()), "several times a step"),
        (lambda m: torch.optim.SparseAdam(list(m.parameters())), "dense"),
        (lambda m: torch.optim.SGD(nn.Linear(4, 4).parameters(), 0.1), r"\[4, 4\], \[4\]"),
        (lambda m: "adam", "expected a torch.optim optimizer"),
    ],
)
def test_optimizers_that_cannot_be_driven_are_refused(build, make, message):
    model = linear()
    with pytest.raises(ConfigError, match=message):
        build(model, optimizer=make(model), loss=nn.MSELoss())


def test_trainable_with_a_native_optimizer_is_refused(build):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ConfigError, match="leave trainable= out"):
        build(model, optimizer=optimizer, loss=nn.MSELoss(), trainable=["weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_are_refused(build, dtype):
    with pytest.raises(ConfigError, match="master weights"):
        build(linear().to(dtype), optimizer=optim.SGD(0.1), loss=nn.MSELoss())


def test_complex_parameters_are_refused(build):
    model = nn.ParameterDict({"w": nn.Parameter(torch.ones(2, dtype=torch.complex64))})
    with pytest.raises(ConfigError, match=r"'w' has dtype torch\.complex64; .*view_as_complex"):
        build(model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loss=nn.MSELoss())


def test_lazy_parameters_are_refused(build):
    with pytest.raises(ConfigError, match="lazy"):
        build(nn.LazyLinear(3), optimizer=optim.SGD(0.1), loss=nn.MSELoss())


def test_schedulers_that_cannot_be_stepped_are_refused(build):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    other = torch.optim.SGD(model.parameters(), 0.1)
    schedulers = torch.optim.lr_scheduler
    cases = [
        (optimizer, schedulers.ReduceLROnPlateau(optimizer), "needs a metric"),
        (optimizer, schedulers.StepLR(other, 1), "another optimizer"),
        (optim.SGD(0.1), schedulers.StepLR(optimizer, 1), "another optimizer"),
        (optimizer, "cosine", "expected a scheduler"),
    ]
    for used, schedule, message in cases:
        with pytest.raises(ConfigError, match=message):
            build(model, optimizer=used, loss=nn.MSELoss(), schedule=schedule)


def test_state_follows_a_parameter_that_moved():
    parameter = nn.Parameter(torch.ones(2, 3, device="meta"))  # stands in for a GPU
    optimizer = torch.optim.Adam([parameter], 0.1)
    slots = {"exp_avg": torch.ones(2, 3), "exp_avg_sq": torch.ones(2, 3)}
    optimizer.state[parameter] = {"step": torch.tensor(1.0), **slots}
    follow_parameters(optimizer)
    state = optimizer.state[parameter]
    assert {slot: value.device.type for slot, value in state.items()} == {
        "step": "cpu",
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }

from __future__ import annotations

import copy
import json
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unified_ipu as ui
from unified_ipu.comms import connect
from unified_ipu.world import World
from unified_ipu_torch.plain_values import from_plain, to_plain

optim, schedulers = torch.optim, torch.optim.lr_scheduler

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]])).astype(np.float32)


def session(**settings):
    plan = ui.Plan().replace(
        {"batch.global_batch_size": 4, "batch.micro_batch_size": 4, **settings}
    )
    return ui.Session(plan, world=World(), communicator=connect(rank=0, size=1, job=""), argv=[])


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4),
        torch.nn.BatchNorm1d(4),
        torch.nn.Dropout(0.25),
        torch.nn.Linear(4, 1),
    )


def compiled(one, make_optimizer, make_schedule=None, model=None):
    model = net() if model is None else model
    optimizer = make_optimizer(model.parameters())
    schedule = None if make_schedule is None else make_schedule(optimizer)
    return one.compile(model, loss=torch.nn.MSELoss(), optimizer=optimizer, schedule=schedule)


def trained(program, updates):
    for update in range(updates):
        rows = [(4 * (program.update + update)) % 8 + k for k in range(4)]
        program.step((X[rows], Y[rows]))
    return program


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam on one tensor at a time": lambda p: optim.Adam(p, lr=0.01, foreach=False),
    "fused AdamW": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "Adam whose rate is a tensor": lambda p: optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1),
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "ASGD": optim.ASGD,
    "Rprop": optim.Rprop,
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_l3_5_every_optimizer_goes_on_bit_for_bit(tmp_path, kind):
    make = OPTIMIZERS[kind]
    with session() as one:
        whole = trained(trained(compiled(one, make), 3), 3).weights()
    with session() as one:
        trained(compiled(one, make), 3).save(tmp_path)
    with session() as one:
        program = compiled(one, make, model=net(seed=9))
        program.restore(tmp_path)
        again = trained(program, 3).weights()
    assert {n: v.tobytes() for n, v in again.items()} == {n: v.tobytes() for n, v in whole.items()}


def chained(optimizer):
    return schedulers.ChainedScheduler(
        [
            schedulers.ConstantLR(optimizer, factor=0.5, total_iters=2),
            schedulers.ExponentialLR(optimizer, gamma=0.9),
        ]
    )


def sequential(optimizer):
    return schedulers.SequentialLR(
        optimizer,
        [
            schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=2),
            schedulers.CosineAnnealingLR(optimizer, T_max=6),
        ],
        milestones=[2],
    )


SCHEDULES = {
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 4, 4]),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda update: 1.0 / (1 + update)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda update: 0.9),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=20),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.2, step_size_up=2),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, total_iters=10),
    "warm restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2),
    "chained": chained,
    "sequential": sequential,
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_l3_5_every_schedule_goes_on_with_the_same_rates(tmp_path, kind):
    def make(parameters):
        return optim.SGD(parameters, lr=0.1, momentum=0.9)

    def rates(program, updates):
        return [program.step((X[:4], Y[:4])).lr for _ in range(updates)]

    with session() as one:
        program = compiled(one, make, SCHEDULES[kind])
        whole = rates(program, 4) + rates(program, 4)
        weights = program.weights()
    with session() as one:
        program = compiled(one, make, SCHEDULES[kind])
        before = rates(program, 4)
        program.save(tmp_path)
    with session() as one:
        program = compiled(one, make, SCHEDULES[kind], model=net(seed=9))
        program.restore(tmp_path)
        assert before + rates(program, 4) == whole
        again = program.weights()
    assert len(set(whole)) > 1
    assert {n: v.tobytes() for n, v in again.items()} == {
        n: v.tobytes() for n, v in weights.items()
    }


def test_the_weights_load_into_a_model_without_us_tied_names_included(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Linear(3, 3, bias=False)
            self.out = torch.nn.Linear(3, 3)
            self.out.weight = self.embed.weight
            self.register_buffer("narrow", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
            self.register_buffer("scratch", torch.ones(2), persistent=False)

        def forward(self, x):
            return self.out(self.embed(x)).sum(1, keepdim=True)

    with session() as one:
        model = Tied()
        program = compiled(one, optim.Adam, model=model)
        path = trained(program, 2).save(tmp_path)
        expected = copy.deepcopy(model.state_dict())
    other = Tied()
    other.load_state_dict(load_file(path / "weights.safetensors"))  # strict
    for name, value in other.state_dict().items():
        assert value.dtype == expected[name].dtype
        assert torch.equal(value, expected[name]), name
    third = Tied()
    with session() as one:
        program = compiled(one, optim.Adam, model=third)
        program.restore(tmp_path)
        assert third.out.weight is third.embed.weight
        assert torch.equal(third.state_dict()["narrow"], expected["narrow"])
        assert torch.equal(third.out.weight, expected["out.weight"])


def test_a_checkpoint_holds_no_object_of_python(tmp_path):
    with session() as one:
        path = trained(compiled(one, OPTIMIZERS["Adam"], sequential), 1).save(tmp_path)
    table = json.loads((path / "manifest.json").read_text())
    scalars = table["programs"]["model"]["scalars"]
    assert scalars["optimizer"]["kind"] == "Adam"
    assert scalars["optimizer"]["groups"][0]["parameters"][:2] == ["0.weight", "0.bias"]
    assert scalars["schedule_kind"] == "SequentialLR"
    assert not {"fused", "foreach", "params"} & set(scalars["optimizer"]["groups"][0])


class Odd(optim.SGD):
    """Keeps a list a parameter, as some second-order optimizers do."""

    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [torch.zeros(2)]
        return result


class Global(optim.SGD):
    """Keeps state that belongs to no parameter."""

    def step(self, closure=None):
        self.state[torch.zeros(1)] = {"number": 1}
        return super().step(closure)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Odd, "Odd's state 'history' of '0.weight' holds a Tensor"),
        (Global, r"Global keeps state that belongs to no parameter, \['tensor"),
    ],
)
def test_an_optimizer_whose_state_has_no_plain_form_is_refused_by_name(tmp_path, kind, said):
    with session() as one:
        program = trained(compiled(one, lambda p: kind(p, lr=0.1)), 1)
        with pytest.raises(ui.CheckpointError, match=said):
            program.save(tmp_path)
    assert not tmp_path.joinpath("latest").exists()


@pytest.mark.parametrize(
    ("make", "schedule", "said"),
    [
        (OPTIMIZERS["SGD"], None, "saved with optimizer Adam, this program has SGD"),
        (
            OPTIMIZERS["Adam"],
            sequential,
            "saved with scheduler None, this program has SequentialLR",
        ),
        (
            lambda p: optim.Adam([{"params": [one]} for one in p], amsgrad=True),
            None,
            "other parameters or other groups of them; saved: 0.weight, 0.bias",
        ),
    ],
)
def test_another_optimizer_scheduler_or_group_is_refused_before_anything_changes(
    tmp_path, make, schedule, said
):
    with session() as one:
        trained(compiled(one, OPTIMIZERS["Adam"]), 2).save(tmp_path)
    with session() as one:
        program = compiled(one, make, schedule, model=net(seed=9))
        before = program.weights()
        with pytest.raises(ui.CheckpointError, match=said):
            program.restore(tmp_path)
        after = program.weights()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_the_settings_of_the_optimizer_are_those_of_the_checkpoint(tmp_path):
    with session() as one:
        trained(compiled(one, lambda p: optim.Adam(p, lr=0.02, betas=(0.8, 0.9))), 1).save(tmp_path)
    with session() as one:
        model = net()
        optimizer = optim.Adam(model.parameters(), lr=0.5)
        program = one.compile(model, loss=torch.nn.MSELoss(), optimizer=optimizer)
        program.restore(tmp_path)
    assert optimizer.param_groups[0]["lr"] == 0.02
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        "text",
        0.1,
        float("inf"),
        (1, (2.5, [3])),
        {"a": {"b": (1,)}},
        {1: "a", (2, 3): 4},
        {"__python__": "mine"},
        Counter({4: 2, 1: 1}),
    ],
)
def test_plain_values_come_back_as_the_same_types(value):
    back = from_plain(json.loads(json.dumps(to_plain(value, "it"))))
    assert back == value
    assert type(back) is type(value)


def test_numbers_of_numpy_and_torch_become_plain():
    assert to_plain([np.float64(0.1), torch.tensor(3)], "it") == [0.1, 3]
    assert np.isnan(from_plain(to_plain(float("nan"), "it")))

"""A step without torch's detours gives the bits of ``Optimizer.step``, or leaves it to torch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from unified_ipu_torch.plain_step import plain_step

KINDS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.3, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.3}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
    (torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.2}),
]
WAYS = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]


def pair(kind, settings):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)).double()
    twin = copy.deepcopy(net)
    return [(n, kind(groups(n), **settings)) for n in (net, twin)]


def groups(net):
    return [{"params": net[0].parameters()}, {"params": net[1].parameters(), "weight_decay": 0.01}]


def plain(optimizer):
    step = plain_step(optimizer)
    assert step is not None
    return step


def set_gradients(net, seed):
    torch.manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)


def assert_same(net, twin):
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters()))


def by_torch(optimizer, factor=1.0):
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] *= factor
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_ten_steps_have_the_bits_of_torchs_own(kind, settings, way):
    (net, optimizer), (twin, theirs) = pair(kind, {**settings, **way})
    step = plain(optimizer)
    were_plain = 0
    for number in range(10):
        factor = 1.0 if number % 2 else 0.5
        for each in (net, twin):
            set_gradients(each, number)
            if number == 5:
                each[1].bias.grad = None
        if step.step(factor):
            were_plain += 1
        else:
            by_torch(optimizer, factor)
        by_torch(theirs, factor)
        assert_same(net, twin)
    assert were_plain >= 9
    assert optimizer.param_groups[0]["lr"] == settings["lr"]
    for mine, other in zip(net.parameters(), twin.parameters()):
        assert str(optimizer.state[mine]) == str(theirs.state[other])


def test_state_and_settings_that_the_user_replaces_are_used():
    ((net, optimizer), (twin, theirs)) = pair(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    step = plain(optimizer)
    for each in (net, twin):
        set_gradients(each, 0)
    by_torch(optimizer)
    by_torch(theirs)
    set_gradients(twin, 1)
    by_torch(theirs)
    net.load_state_dict(twin.state_dict())
    optimizer.load_state_dict(copy.deepcopy(theirs.state_dict()))
    for each in (optimizer, theirs):
        each.param_groups[1]["momentum"] = 0.5
    set_gradients(net, 2)
    set_gradients(twin, 2)
    assert step.step(1.0)
    by_torch(theirs)
    assert_same(net, twin)


def test_state_in_another_order_than_the_parameters_finds_its_own():
    ((net, optimizer), (twin, theirs)) = pair(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    step = plain(optimizer)
    for each, by in ((net, optimizer), (twin, theirs)):
        set_gradients(each[1], 0)
        by_torch(by)  # so the state of the last layer comes first
        set_gradients(each, 1)
        by_torch(by)
        set_gradients(each, 2)
        each[0].bias.grad = None
    assert step.step(1.0)
    by_torch(theirs)
    assert_same(net, twin)


def stepped(**settings):
    ((net, optimizer), _) = pair(torch.optim.SGD, {"lr": 0.1, **settings})
    set_gradients(net, 0)
    optimizer.step()
    return net, optimizer


def test_hooks_of_the_user_are_called_by_torchs_own_step():
    net, optimizer = stepped()
    step = plain(optimizer)
    assert step.step(1.0)
    called = []
    handle = optimizer.register_step_post_hook(lambda *_: called.append(1))
    before = [parameter.clone() for parameter in net.parameters()]
    assert not step.step(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    handle.remove()
    assert step.step(1.0)
    assert not called


def test_hooks_of_all_optimizers_are_called_by_torchs_own_step():
    _, optimizer = stepped()
    step = plain(optimizer)
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    try:
        assert not step.step(1.0)
    finally:
        handle.remove()
    assert step.step(1.0)


def test_schedulers_and_profilers_see_torchs_own_step():
    _, optimizer = stepped()
    step = plain(optimizer)
    with torch.autograd.profiler.profile():
        assert not step.step(1.0)
    assert step.step(1.0)
    torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    assert not step.step(1.0)


@pytest.mark.parametrize("settings", [{"amsgrad": True}, {"differentiable": True}])
def test_settings_with_more_state_are_left_to_torch(settings):
    ((net, optimizer), _) = pair(torch.optim.Adam, {"lr": 0.1, **settings})
    set_gradients(net, 0)
    if "differentiable" not in settings:
        optimizer.step()
    assert not plain(optimizer).step(1.0)


def test_other_optimizers_are_left_to_torch():
    class Mine(torch.optim.SGD):
        pass

    net = torch.nn.Linear(2, 2)
    assert plain_step(torch.optim.RMSprop(net.parameters(), lr=0.1)) is None
    assert plain_step(Mine(net.parameters(), lr=0.1)) is None

"""The fast step of our own fused optimizers gives the bits of torch's."""

from __future__ import annotations

import copy

import pytest
import torch

from unified_ipu_torch.fused_step import fused_step

KINDS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.3}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.3}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
    (torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-5, "weight_decay": 0.2}),
]


def pair(kind, settings):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)).double()
    twin = copy.deepcopy(net)
    return [(n, kind(n.parameters(), fused=True, **settings)) for n in (net, twin)]


def fast_of(optimizer):
    fast = fused_step(optimizer)
    assert fast is not None
    return fast


def set_gradients(net, seed):
    torch.manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_ten_steps_have_the_bits_of_torchs_own(kind, settings):
    (net, optimizer), (twin, theirs) = pair(kind, settings)
    fast = fast_of(optimizer)
    were_fast = 0
    for number in range(10):
        factor = 1.0 if number % 2 else 0.5
        set_gradients(net, number)
        set_gradients(twin, number)
        if fast.step(factor):
            were_fast += 1
        else:
            with_factor(optimizer, factor)
        with_factor(theirs, factor)
        for mine, other in zip(net.parameters(), twin.parameters()):
            assert torch.equal(mine, other)
    assert were_fast >= 9
    assert optimizer.param_groups[0]["lr"] == settings["lr"]
    for mine, other in zip(net.parameters(), twin.parameters()):
        assert optimizer.state[mine].keys() == theirs.state[other].keys()
        for slot, value in optimizer.state[mine].items():
            if value is not None:
                assert torch.equal(value, theirs.state[other][slot])


def with_factor(optimizer, factor):
    kept = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0]["lr"] = kept * factor
    optimizer.step()
    optimizer.param_groups[0]["lr"] = kept


def test_a_parameter_without_a_gradient_is_left_to_torch():
    ((net, optimizer), _) = pair(torch.optim.SGD, {"lr": 0.1})
    fast = fast_of(optimizer)
    set_gradients(net, 0)
    net[0].bias.grad = None
    before = [parameter.clone() for parameter in net.parameters()]
    assert not fast.step(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))


def test_replaced_state_is_used_after_it_was_announced():
    ((net, optimizer), (twin, theirs)) = pair(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    fast = fast_of(optimizer)
    for number in range(3):
        set_gradients(net, number)
        if not fast.step(1.0):
            optimizer.step()
    for mine, other in zip(net.parameters(), twin.parameters()):
        other.data.copy_(mine.data)
        theirs.state[other]["momentum_buffer"] = torch.full_like(other, 2.0)
        optimizer.state[mine]["momentum_buffer"] = torch.full_like(mine, 2.0)
    fast.forget()
    set_gradients(net, 9)
    set_gradients(twin, 9)
    assert fast.step(1.0)
    theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters()))


def test_an_optimizer_without_a_fused_kernel_is_left_to_torch():
    net = torch.nn.Linear(2, 2)
    assert fused_step(torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)) is None
    assert fused_step(torch.optim.RMSprop(net.parameters(), lr=0.1)) is None

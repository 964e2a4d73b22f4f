"""``deterministic = true``: kernels that repeat themselves, and torch as it was before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu import Session
from unified_ipu.adapter import Job, MicroBatch, Place, optim
from unified_ipu.errors import CapabilityError
from unified_ipu.plan import Plan
from unified_ipu.session import Program
from unified_ipu_torch.adapter import TorchAdapter

PLAN = Plan(deterministic=True)


@pytest.fixture(autouse=True)
def _settings_are_left_as_they_were():
    before = settings()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.benchmark = before[2]


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


def build(model, plan=PLAN, **rest):
    return TorchAdapter().build(Job(model, loss=nn.MSELoss(), **rest), plan, Place())


@pytest.mark.parametrize("before", [(False, False, True), (True, True, False)])
def test_torch_is_put_back_when_the_last_program_closes(before):
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.backends.cudnn.benchmark = before[2]
    first, second = build(nn.Linear(1, 1)), build(nn.Linear(1, 1))
    assert settings() == (True, False, False)
    first.close()
    first.close()  # closing twice must not let go twice
    assert settings() == (True, False, False)
    second.close()
    assert settings() == before


def test_a_plan_that_does_not_ask_changes_nothing():
    before = settings()
    build(nn.Linear(1, 1), Plan()).close()
    with TorchAdapter().scope(Plan(), Place()):
        assert settings() == before


def test_a_scope_has_them_inside_only():
    before = settings()
    with TorchAdapter().scope(PLAN, Place()):
        assert settings() == (True, False, False)
    assert settings() == before


def test_a_session_has_them_while_its_programs_are_open():
    before = settings()
    with Session(PLAN, argv=[]) as session:
        program = session.compile(nn.Linear(1, 1), loss=nn.MSELoss(), optimizer=optim.SGD(0.1))
        assert isinstance(program, Program)
        program.step((np.ones((2, 1), np.float32), np.ones((2, 1), np.float32)))
        assert settings() == (True, False, False)
    assert settings() == before


class Pooled(nn.Module):
    """Uses an operation for which torch has no deterministic kernel, on the CPU neither."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        places = torch.tensor([[[0, 2]]]).expand(len(x), 1, 2)
        return nn.functional.max_unpool1d(self.linear(x)[:, None], places, [2])[:, 0]


def test_an_operation_without_a_deterministic_kernel_is_named():
    x = np.ones((3, 2), np.float32)
    for plan, is_refused in ((PLAN, True), (Plan(), False)):
        replica = build(Pooled(), plan, optimizer=optim.SGD(0.1))
        replica.begin_update()
        micro = MicroBatch(0, (x, np.ones((3, 4), np.float32)), 3)
        if is_refused:
            with pytest.raises(CapabilityError, match=r"max_unpooling.*set deterministic = false"):
                replica.forward_backward(micro, scale=1.0, seed=0, ready=print)
        else:
            replica.forward_backward(micro, scale=1.0, seed=0, ready=print)
        replica.close()

"""Whose a schedule is: a callable of the user's gives factors, a framework's own goes to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.testing.threads import RanksFailedError
from unified_ipu_numpy import MeanSquaredError, Mlp, NumpyAdapter

X, Y = np.ones((4, 3)), np.zeros((4, 1))


class Schedule:
    """As Keras has them: it can be called, and has no method ``step``."""

    def __call__(self, update: int) -> float:
        return 0.5


def train(session: ui.Session) -> Any:
    program = session.compile(
        Mlp((3, 1)), loss=MeanSquaredError(), optimizer=ui.optim.SGD(lr=1.0), schedule=Schedule()
    )
    return program.step((X[:2], Y[:2])).lr


def test_a_callable_gives_factors(on_ranks):
    assert on_ranks(1, train) == [0.5]


def test_a_schedule_that_the_adapter_owns_goes_to_it(on_ranks, monkeypatch):
    owns = staticmethod(lambda schedule: isinstance(schedule, Schedule))
    monkeypatch.setattr(NumpyAdapter, "owns_schedule", owns, raising=False)
    with pytest.raises(RanksFailedError, match="native schedulers are not supported"):
        on_ranks(1, train)  # this adapter refuses all that it is given

"""Sessions on several ranks (threads) with the numpy adapter."""

from __future__ import annotations

from typing import Any, List

import pytest

import unified_ipu as ui
from unified_ipu.testing.threads import run_ranks
from unified_ipu_numpy import MeanSquaredError, Mlp


@pytest.fixture
def on_ranks() -> Any:
    """Return ``on_ranks(size, body, **settings)``: the results of ``body(session)`` by rank."""

    def run(size: int, body: Any, **settings: Any) -> List[Any]:
        def rank(world: Any, communicator: Any) -> Any:
            changes = {name.replace("__", "."): value for name, value in settings.items()}
            batch = {"batch.global_batch_size": 4, "batch.micro_batch_size": 2}
            plan = ui.Plan().replace({"mesh.data": size, **batch, **changes})
            with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
                return body(session)

        return run_ranks(size, rank, timeout_seconds=20.0)

    return run


@pytest.fixture
def compiled() -> Any:
    """Return ``compiled(session, lr=)``: a program of a linear model of three inputs."""

    def build(session: ui.Session, lr: float = 0.1) -> ui.Program:
        return session.compile(
            Mlp((3, 1)), loss=MeanSquaredError("mean"), optimizer=ui.optim.SGD(lr=lr)
        )

    return build

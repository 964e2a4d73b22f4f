"""Small trainings on threads that tests of saving share."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu_numpy import MeanSquaredError, Mlp

X = np.random.default_rng(0).normal(size=(22, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]])


def run(size: int, body: Any, **settings: Any) -> List[Any]:
    """Run ``body(session)`` on each of ``size`` ranks (threads)."""

    def rank(world: Any, communicator: Any) -> Any:
        changes = {name.replace("__", "."): value for name, value in settings.items()}
        plan = ui.Plan().replace(
            {
                "mesh.data": size,
                "batch.global_batch_size": 4,
                "batch.micro_batch_size": 2,
                **changes,
            }
        )
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            return body(session)

    return run_ranks(size, rank, timeout_seconds=20.0)


def compiled(session: ui.Session, sizes: Any = (3, 4, 1), **settings: Any) -> ui.Program:
    return session.compile(
        Mlp(sizes, seed=session.rank, dropout=0.25),
        loss=MeanSquaredError("mean"),
        optimizer=settings.pop("optimizer", ui.optim.Adam(lr=0.05)),
        **settings,
    )


def equal(left: Dict[str, Any], right: Dict[str, Any]) -> bool:
    return set(left) == set(right) and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )


def unbroken(session: ui.Session, epochs: int = 3, **fit: Any) -> Any:
    program, train = compiled(session), session.loader((X, Y))
    summary = program.fit(train, epochs=epochs, **fit)
    return program.weights(), summary


def refused(body: Any, error: Any, size: int = 1) -> str:
    with pytest.raises(RanksFailedError) as caught:
        run(size, body)
    assert isinstance(caught.value.errors[0], error), caught.value.errors[0]
    return str(caught.value.errors[0])

"""Small trainings on emulated devices, with threads for processes."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest

import unified_ipu as ui
from tests.unified_ipu.session.small_runs import run
from unified_ipu.testing.threads import RanksFailedError
from unified_ipu_numpy import MeanSquaredError, Mlp

IGNORED = -1
CLASSES = 3


def device(**settings: Any) -> Dict[str, Any]:
    return {"target": "ipu-emulated", "batch__remainder": "pad", "data__shuffle": False, **settings}


def classes(size: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, 4)), rng.integers(0, CLASSES, size)


def refused(body: Any, error: Any, size: int = 1, **settings: Any) -> str:
    with pytest.raises(RanksFailedError) as caught:
        run(size, body, **device(**settings))
    assert all(isinstance(each, error) for each in caught.value.errors.values()), caught.value
    return str(caught.value.errors[0])


def compiled(session: ui.Session, loss: Any = None, model: Any = None, **more: Any) -> ui.Program:
    return session.compile(
        model or Mlp((4, 1)),
        loss=loss or MeanSquaredError("mean"),
        optimizer=ui.optim.SGD(lr=0.1),
        **more,
    )


def mean_of(outputs: Any, targets: Any) -> Any:
    difference = outputs - targets
    return (difference**2).sum() / len(outputs), 2 * difference / len(outputs)

"""The processes of a session as the links between their emulated devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict

import numpy as np
import pytest

from unified_ipu.device import CallShape, Reduction, train
from unified_ipu.errors import CollectiveError
from unified_ipu.session.device_targets import Links
from unified_ipu.testing.threads import RanksFailedError, run_ranks

ARITHMETIC: Any = SimpleNamespace(
    start=np.array,
    add=np.add,
    scale=np.multiply,
    finish=np.multiply,
    across=lambda total, fabric: fabric.sum(total),
)


def reduced(communicator: Any, gradients: Dict[str, Any]) -> Dict[str, float]:
    found: Dict[str, float] = {}
    train(
        CallShape(),
        Reduction(),
        lambda _: gradients,
        lambda each: found.update({name: float(value) for name, value in each.items()}),
        arithmetic=ARITHMETIC,
        fabric=Links(communicator),
    )
    return found


def test_devices_add_the_gradients_of_all_processes_tensor_by_tensor() -> None:
    def run_rank(world: Any, communicator: Any) -> Dict[str, float]:
        return reduced(communicator, {"a": 1.0 + world.rank, "b": 10.0 * world.rank})

    assert run_ranks(2, run_rank) == [{"a": 3.0, "b": 10.0}] * 2


def test_processes_that_reduce_other_tensors_are_told_which() -> None:
    def run_rank(world: Any, communicator: Any) -> Dict[str, float]:
        return reduced(communicator, {"ab"[world.rank]: 1.0})

    with pytest.raises(RanksFailedError) as failed:
        run_ranks(2, run_rank)
    assert len(failed.value.errors) == 2
    for error in failed.value.errors.values():
        assert isinstance(error, CollectiveError)
        assert "device sum a" in str(error)
        assert "device sum b" in str(error)

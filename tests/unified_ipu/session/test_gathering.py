from __future__ import annotations

from typing import Any, List, cast

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu_numpy import MeanSquaredError, Mlp

X = np.random.default_rng(1).normal(size=(11, 2))
Y = (X[:, :1] > 0).astype(np.float64)


def area_under_curve(outputs: Any, targets: Any) -> float:
    """Share of (positive, negative) pairs that the outputs put in the right order."""
    positive, negative = outputs[targets > 0.5], outputs[targets < 0.5]
    return float((positive[:, None] > negative[None, :]).mean())


def evaluate(size: int, metric: Any, **settings: Any) -> List[Any]:
    def rank(world: Any, communicator: Any) -> Any:
        changes = {name.replace("__", "."): value for name, value in settings.items()}
        plan = ui.Plan().replace({"mesh.data": size, "batch.micro_batch_size": 2, **changes})
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            program = session.compile(Mlp((2, 3, 1)), loss=MeanSquaredError("mean"))
            loader = session.loader((X, Y), train=False)
            return program.evaluate(loader, {"whole": metric, "size": lambda o, t: (len(o), 1)})

    return run_ranks(size, rank, timeout_seconds=20.0)


def test_l6_3_a_metric_of_all_rows_is_the_same_on_every_world():
    model = Mlp((2, 3, 1))
    expected = area_under_curve(model.forward(X)[0], Y)
    for size in (1, 2, 3, 7):  # with 7 replicas one has no rows
        for found in evaluate(size, ui.metrics.gathered(area_under_curve)):
            assert found["whole"] == expected
            assert set(found) == {"loss", "whole", "size"}


def test_l6_6_padding_is_no_row_of_a_gathered_metric():
    settings = {"batch__remainder": "pad", "batch__global_batch_size": 4}
    count = ui.metrics.gathered(lambda outputs, targets: len(outputs) + len(targets))
    for found in evaluate(2, count, **settings):
        assert found["whole"] == 22


def test_rows_come_in_the_order_of_the_samples():
    def misplaced(outputs: Any, targets: Any) -> int:
        return int((targets != Y).sum())

    for found in evaluate(3, ui.metrics.gathered(misplaced)):
        assert found["whole"] == 0


def test_a_gathered_metric_that_is_no_number_is_refused_by_name():
    with pytest.raises(RanksFailedError) as caught:
        evaluate(2, ui.metrics.gathered(cast("Any", lambda outputs, targets: "good")))
    assert "metric 'whole' returned a str" in str(caught.value.errors[0])

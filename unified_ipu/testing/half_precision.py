"""Runs in half precision, as one rank makes them."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from unified_ipu.adapter import optim
from unified_ipu.data import arrays
from unified_ipu.testing import samples
from unified_ipu.testing.ranks import Rank, outcome_of
from unified_ipu.testing.scenarios import Training, batch_plan, compiled, make, train


def train_reduced(rank: Rank, *, precision: Dict[str, Any]) -> Any:
    """Train ten updates in that precision; the weights, or the refusal."""
    weights, biases = samples.mlp_values()
    x, y = samples.regression(40)
    run = Training(
        make("mlp", weights=weights, biases=biases, dtype="float32"),
        optim.SGD(lr=0.05),
        loss=make("mean_squared_error"),
        data=(x.astype(np.float32), y.astype(np.float32)),
        plan=batch_plan(4, 2, precision=precision),
    )
    return outcome_of(lambda: train(rank, run=run).weights)


def run_rounded(rank: Rank, *, compute: str, weight: float) -> Any:
    """One update of a weight that forward rounds to 1: (before, record, after, predictions)."""
    data = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    run = Training(
        make("linear", weight=np.array([[weight]]), dtype="float32"),
        optim.SGD(lr=2.0**-16),
        loss=make("mean_squared_error"),
    )
    with rank.session(batch_plan(4, 2, precision={"compute": compute})) as session:
        with session.scope():
            model = run.model.on(rank.subject)
        program = compiled(rank, session, model, run)
        held_out = session.loader(arrays(*data), train=False)
        loss = program.evaluate(held_out)["loss"]
        predicted = program.predict(held_out)
        (record,) = [program.step(call) for call in session.loader(arrays(*data))]
        after = float(model.canonical(program.weights())["weight"][0, 0])
        return loss, predicted, record, after


def count_rows(rank: Rank, *, compute: str, rows: int) -> Any:
    """W of an update of so many rows in one micro-batch, a third of them ignored."""
    targets = np.array([0, 1, samples.IGNORED] * (rows // 3), np.int64)
    run = Training(
        make("linear", weight=np.zeros((1, 2)), dtype="float32"),
        optim.SGD(lr=1.0),
        loss=make("cross_entropy", ignore_index=samples.IGNORED),
        data=(np.ones((rows, 1), np.float32), targets),
        plan=batch_plan(rows, rows, precision={"compute": compute}),
    )
    return train(rank, run=run).records[0].weight

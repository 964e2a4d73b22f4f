from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unified_ipu as ui

X = np.random.default_rng(0).normal(size=(22, 3))
Y = X @ np.array([[1.0], [-2.0], [0.5]])


def scripted(values: Any) -> Any:
    """Return a metric that gives one value an evaluation, whatever the model does."""
    left = list(values)

    class Next(ui.Callback):
        current = float(left.pop(0))

        def on_epoch_end(self, context: ui.FitContext, summary: ui.EpochSummary) -> None:
            type(self).current = float(left.pop(0)) if left else 0.0

    def metric(outputs: Any, targets: Any) -> Any:
        return Next.current * len(targets), float(len(targets))

    return metric, Next()


def fit(session: ui.Session, program: Any, values: Any, callbacks: Any, **rest: Any) -> Any:
    metric, following = scripted(values)
    return program.fit(
        session.loader((X, Y)),
        validation=session.loader((X, Y), train=False),
        metrics={"score": metric},
        callbacks=[*callbacks, following],
        **rest,
    )


@pytest.mark.parametrize(
    ("mode", "values", "best"), [("max", [1, 3, 2, 3], 1), ("min", [4, 3, 5, 2, 9], 3)]
)
def test_the_weights_of_the_best_epoch_are_kept(on_ranks, compiled, tmp_path, mode, values, best):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        weights = []

        class Keep(ui.Callback):
            def on_epoch_end(self, context: ui.FitContext, summary: ui.EpochSummary) -> None:
                weights.append(program.weights())

        callback = ui.BestCheckpoint(tmp_path / "best", "score", mode=mode)
        fit(session, program, values, [callback, Keep()], epochs=len(values))
        path = program.restore(tmp_path / "best")
        restored = program.weights()
        same = [all((restored[n] == w[n]).all() for n in w) for w in weights]
        return same, path == callback.path, program.update

    for same, is_path, update in on_ranks(2, body):
        assert same == [epoch == best for epoch in range(len(values))]
        assert is_path
        assert update == 6 * (best + 1)
    assert len(list((tmp_path / "best").glob("step-*"))) == 1


def test_a_resumed_fit_replaces_the_best_only_by_a_better_one(on_ranks, compiled, tmp_path):
    def run(session: ui.Session, values: Any, epochs: int) -> Any:
        callback = ui.BestCheckpoint(tmp_path / "best", "score", mode="max")
        rest = {"checkpoint": tmp_path / "run", "resume": "auto"}
        fit(session, compiled(session), values, [callback], epochs=epochs, **rest)
        return callback.path

    (first,) = on_ranks(1, lambda session: run(session, [1, 5], 2))
    (second,) = on_ranks(1, lambda session: run(session, [4, 5], 4))
    (third,) = on_ranks(1, lambda session: run(session, [6], 5))
    assert first.name == "step-00000012"
    assert second is None
    assert third.name == "step-00000030"


def test_a_resumed_fit_is_as_patient_as_an_unbroken_one(on_ranks, compiled, tmp_path):
    def run(session: ui.Session, values: Any, epochs: int) -> Any:
        stop = ui.EarlyStop("score", mode="max", patience=2)
        rest = {"checkpoint": tmp_path / "run", "resume": "auto"}
        summary = fit(session, compiled(session), values, [stop], epochs=epochs, **rest)
        return [epoch.epoch for epoch in summary.epochs], summary.stopped

    assert on_ranks(2, lambda session: run(session, [5, 4], 2)) == [([0, 1], "")] * 2
    reason = "validation score no better for 2 epochs, since 5 in epoch 1"
    assert on_ranks(2, lambda session: run(session, [4, 9, 9], 9)) == [([2], reason)] * 2
    # Started once more, it ends again.
    assert on_ranks(2, lambda session: run(session, [9, 9], 9)) == [([], reason)] * 2


def test_an_early_stop_begins_anew_in_a_second_fit(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        stop, program = ui.EarlyStop("score", patience=1), compiled(session)
        return [len(fit(session, program, [1, 2, 3], [stop], epochs=3).epochs) for _ in range(2)]

    assert on_ranks(1, body) == [[2, 2]]

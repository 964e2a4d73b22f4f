"""When ``fit`` evaluates and ends: ``validation=``, ``every=``, ``max_updates=``."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

import unified_ipu as ui

X = np.random.default_rng(0).normal(size=(22, 3))  # six updates of at most four samples
Y = X @ np.array([[1.0], [-2.0], [0.5]])
HELD = np.random.default_rng(1).normal(size=(7, 3))
WANTED = HELD.sum(1, keepdims=True)


def mean_squared_error(weights: Any, x: Any, y: Any) -> float:
    outputs = x @ weights["0.weight"].T + weights["0.bias"]
    return float(((outputs - y) ** 2).mean())


def watched(program: Any) -> List[int]:
    """Return a list to which each evaluation adds the number of updates before it."""
    seen: List[int] = []
    original = program.evaluate

    def evaluate(loader: Any, metrics: Any = None) -> Any:
        seen.append(program.update)
        return original(loader, metrics)

    program.evaluate = evaluate
    return seen


@pytest.mark.parametrize(
    ("every", "updates_per_call", "epochs", "evaluations"),
    [
        ("epoch", 1, 2, [6, 12]),
        (4, 1, 2, [4, 8, 12]),  # counts on over the end of an epoch
        (6, 1, 2, [6, 12]),
        (5, 1, 2, [5, 10]),
        (100, 1, 2, []),
        (2, 5, 2, [5, 6, 11, 12]),  # calls of 5 and 1: at the first boundary behind 2, 4, 6 ...
        (4, 5, 2, [5, 11, 12]),
        (1, 3, 1, [3, 6]),
    ],
)
def test_evaluations_come_at_the_first_call_boundary_behind_each_multiple(
    on_ranks, compiled, every, updates_per_call, epochs, evaluations
):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        seen = watched(program)
        test = session.loader((HELD, WANTED), train=False)
        summary = program.fit(session.loader((X, Y)), epochs=epochs, validation=test, every=every)
        return seen, bool(summary.validation)

    found = on_ranks(2, body, batch__updates_per_call=updates_per_call)
    assert found == [(evaluations, bool(evaluations))] * 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_results_are_those_of_the_weights_at_that_moment(on_ranks, compiled, size):
    def body(session: ui.Session) -> Any:
        pairs = []

        class Watch(ui.Callback):
            def on_epoch_end(self, context: ui.FitContext, summary: ui.EpochSummary) -> None:
                weights = context.program.weights()
                pairs.append(
                    (summary.validation["loss"], mean_squared_error(weights, HELD, WANTED))
                )

        compiled(session).fit(
            session.loader((X, Y)),
            epochs=3,
            validation=session.loader((HELD, WANTED), train=False),
            callbacks=[Watch()],
        )
        return pairs

    for pairs in on_ranks(size, body):
        assert len(pairs) == 3
        for ours, expected in pairs:
            assert ours == pytest.approx(expected, rel=1e-12)


def test_one_sample_for_three_ranks_is_evaluated_once(on_ranks, compiled):
    def count(outputs: Any, targets: Any) -> Any:
        return float(len(targets)), 1.0

    def body(session: ui.Session) -> Any:
        program = compiled(session)
        test = session.loader((HELD[:1], WANTED[:1]), train=False)
        summary = program.fit(session.loader((X, Y)), validation=test, metrics={"rows": count})
        expected = mean_squared_error(program.weights(), HELD[:1], WANTED[:1])
        return summary.validation, expected

    for validation, expected in on_ranks(3, body):
        assert validation == {"loss": pytest.approx(expected, rel=1e-12), "rows": 1.0}


def test_evaluating_changes_nothing_of_the_training(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        weights = []
        for every in (None, "epoch", 1):
            program = compiled(session)
            rest: Any = {}
            if every is not None:
                rest = {
                    "validation": session.loader((HELD, WANTED), train=False),
                    "every": every,
                }
            program.fit(session.loader((X, Y)), epochs=2, **rest)
            weights.append(program.weights())
        return [
            all((other[name] == weights[0][name]).all() for name in weights[0]) for other in weights
        ]

    # Equal seeds make equal models, so only the evaluations differ.
    assert on_ranks(2, body) == [[True, True, True]] * 2


@pytest.mark.parametrize("updates_per_call", [1, 4, 5])
def test_max_updates_counts_over_epochs_whatever_the_calls(on_ranks, compiled, updates_per_call):
    def body(session: ui.Session) -> Any:
        program, loader = compiled(session), session.loader((X, Y))
        seen = watched(program)
        test = session.loader((HELD, WANTED), train=False)
        summary = program.fit(loader, epochs=9, max_updates=8, validation=test)
        parts = [(epoch.updates, epoch.samples) for epoch in summary.epochs]
        return parts, (program.update, loader.epoch, loader.position), seen

    found = on_ranks(2, body, batch__updates_per_call=updates_per_call)
    # The second epoch is evaluated where it is left.
    assert found == [([(6, 22), (2, 8)], (8, 1, 8), [6, 8])] * 2


def test_max_updates_beyond_the_epochs_changes_nothing(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        summary = compiled(session).fit(session.loader((X, Y)), epochs=2, max_updates=1000)
        return summary.updates, [str(epoch.certificate) for epoch in summary.epochs]

    assert on_ranks(2, body) == [(12, ["22 of 22 samples, each once"] * 2)] * 2


def test_without_validation_nothing_is_evaluated_whatever_every_says(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        return compiled(session).fit(session.loader((X, Y)), every=2).validation

    assert on_ranks(2, body) == [{}, {}]

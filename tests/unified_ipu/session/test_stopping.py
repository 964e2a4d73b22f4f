"""A callback ends the fit: on all ranks, at the same call, whoever asks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import unified_ipu as ui

X = np.random.default_rng(0).normal(size=(22, 3))  # six updates of at most four samples
Y = X @ np.array([[1.0], [-2.0], [0.5]])


class StopAt(ui.Callback):
    """Asks for the end after a number of calls, on some ranks."""

    def __init__(self, calls: int, *ranks: int) -> None:
        self.calls, self.ranks = calls, ranks

    def on_call_end(self, context: ui.FitContext, record: ui.Record) -> None:
        self.calls -= 1
        if self.calls == 0 and context.rank in self.ranks:
            context.stop(f"rank {context.rank} has enough")


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([0], "rank 0 has enough (asked by rank 0)"),
        ([2], "rank 2 has enough (asked by rank 2)"),
        ([1, 2], "rank 1 has enough (asked by rank 1)"),
    ],
)
def test_one_rank_that_asks_ends_the_fit_at_the_same_call_on_all(on_ranks, compiled, ranks, reason):
    def body(session: ui.Session) -> Any:
        program, loader = compiled(session), session.loader((X, Y))
        summary = program.fit(loader, epochs=3, callbacks=[StopAt(8, *ranks)])
        state = (program.update, loader.epoch, loader.position)
        return summary.stopped, summary.updates, len(summary.epochs), state, str(summary)

    for stopped, updates, epochs, state, text in on_ranks(3, body):
        assert (stopped, updates, epochs) == (reason, 8, 2)
        assert state == (8, 1, 8)
        assert re.search(rf"^stopped +{re.escape(reason)}$", text, re.MULTILINE)


def test_a_callback_given_on_one_rank_only_may_stop_all(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        callbacks = [StopAt(2, 1)] if session.rank == 1 else []
        return compiled(session).fit(session.loader((X, Y)), callbacks=callbacks).updates

    assert on_ranks(2, body) == [2, 2]


def test_a_fit_goes_on_after_a_stopped_one_with_the_samples_that_are_left(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        program, loader = compiled(session), session.loader((X, Y))
        first = program.fit(loader, callbacks=[StopAt(4, 0)])
        second = program.fit(loader)
        return first.samples, second.samples, second.stopped

    assert on_ranks(2, body) == [(16, 6, "")] * 2


def test_a_stop_at_the_last_call_of_an_epoch_finishes_the_epoch(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        program, loader = compiled(session), session.loader((X, Y))
        summary = program.fit(loader, epochs=2, callbacks=[StopAt(6, 0, 1)])
        return [str(epoch.certificate) for epoch in summary.epochs], summary.stopped, loader.epoch

    certificate = "22 of 22 samples, each once"
    first, second = on_ranks(2, body)
    assert first == ([certificate], "rank 0 has enough (asked by rank 0)", 1)
    assert first == second


def test_max_updates_at_the_end_of_an_epoch_finishes_the_epoch(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        summary = compiled(session).fit(session.loader((X, Y)), epochs=2, max_updates=6)
        return [str(epoch.certificate) for epoch in summary.epochs]

    assert on_ranks(2, body) == [["22 of 22 samples, each once"]] * 2


def test_a_stop_before_the_first_call_trains_nothing(on_ranks, compiled):
    class Never(ui.Callback):
        def on_fit_start(self, context: ui.FitContext) -> None:
            context.stop("not today")

    def body(session: ui.Session) -> Any:
        summary = compiled(session).fit(session.loader((X, Y)), callbacks=[Never()])
        return summary.updates, summary.epochs, summary.stopped

    assert on_ranks(2, body) == [(0, (), "not today")] * 2


def test_early_stop_ends_a_fit_that_does_not_improve(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        program = compiled(session, lr=1e-300)  # too small to change a weight
        test = session.loader((X, Y), train=False)
        stop = ui.EarlyStop(patience=2)
        summary = program.fit(session.loader((X, Y)), epochs=9, validation=test, callbacks=[stop])
        return len(summary.epochs), summary.stopped, summary.validation["loss"]

    first, second = on_ranks(2, body)
    assert first == second
    epochs, stopped, loss = first
    assert epochs == 3
    assert stopped == f"validation loss no better for 2 epochs, since {loss:.4g} in epoch 1"


def test_early_stop_without_evaluation_is_an_error_that_says_so(on_ranks, compiled):
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        with pytest.raises(ui.ConfigError, match="pass validation= to fit"):
            program.fit(session.loader((X, Y)), callbacks=[ui.EarlyStop()])
        return True

    assert on_ranks(1, body) == [True]

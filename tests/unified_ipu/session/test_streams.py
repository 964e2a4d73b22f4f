"""Training from a stream: as from arrays in their own order, also when resumed."""

from __future__ import annotations

from typing import Any, List

import pytest

import unified_ipu as ui
from tests.unified_ipu.session.small_runs import X, Y, compiled, equal, run

pytestmark = pytest.mark.timeout(120)

PAIRS = ui.data.stream("tests.unified_ipu.session.session_streams:pairs")


class Totals(ui.Callback):
    def __init__(self) -> None:
        self.totals: List[Any] = []

    def on_epoch_start(self, context: ui.FitContext, epoch: int) -> None:
        self.totals.append(context.samples_per_epoch)


def from_stream(session: ui.Session) -> Any:
    program, train = compiled(session), session.loader(PAIRS)
    totals = Totals()
    test = session.loader(PAIRS, train=False)
    summary = program.fit(train, epochs=2, validation=test, callbacks=[totals])
    assert totals.totals == [None, None]
    assert [str(epoch.certificate) for epoch in summary.epochs] == [
        "22 of 22 samples, each once"
    ] * 2
    return program.weights(), summary.validation, [epoch.loss for epoch in summary.epochs]


def from_arrays(session: ui.Session) -> Any:
    program, train = compiled(session), session.loader((X, Y))
    test = session.loader((X, Y), train=False)
    summary = program.fit(train, epochs=2, validation=test)
    return program.weights(), summary.validation, [epoch.loss for epoch in summary.epochs]


@pytest.mark.parametrize("size", [1, 2])
def test_l1_l2_a_stream_trains_like_the_same_samples_in_memory(size: int) -> None:
    for streamed, listed in zip(
        run(size, from_stream), run(size, from_arrays, data__shuffle=False)
    ):
        assert equal(streamed[0], listed[0])
        assert streamed[1:] == listed[1:]


@pytest.mark.parametrize("stop", [2, 6, 8])
def test_l3_a_stream_is_resumed_where_it_was_saved(stop: int, tmp_path: Any) -> None:
    def unbroken(session: ui.Session) -> Any:
        program = compiled(session)
        program.fit(session.loader(PAIRS), epochs=2)
        return program.weights()

    def broken(session: ui.Session) -> Any:
        program, folder = compiled(session), tmp_path / "run"
        program.fit(session.loader(PAIRS), epochs=2, max_updates=stop, checkpoint=folder)
        return program.weights()

    def resumed(session: ui.Session) -> Any:
        program, train = compiled(session), session.loader(PAIRS)
        summary = program.fit(train, epochs=2, checkpoint=tmp_path / "run", resume="auto")
        return program.weights(), str(summary.epochs[-1].certificate)

    expected = run(1, unbroken)[0]
    assert not equal(run(1, broken)[0], expected)
    weights, certificate = run(1, resumed)[0]
    assert equal(weights, expected)
    assert certificate == "22 of 22 samples, each once"


def test_max_updates_cuts_a_call_of_a_stream() -> None:
    def body(session: ui.Session) -> Any:
        program, train = compiled(session), session.loader(PAIRS)
        program.fit(train, epochs=1, max_updates=4)
        position = train.position
        summary = program.fit(train, epochs=1)
        return position, str(summary.epochs[-1].certificate)

    assert run(1, body, batch__updates_per_call=3) == [(16, "22 of 22 samples, each once")]

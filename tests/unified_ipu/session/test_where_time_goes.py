"""The shares of a summary: whose time is whose, and that nothing is counted twice or not at all."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import unified_ipu as ui
from tests.unified_ipu.session.small_runs import compiled, run

X = np.ones((8, 3))
Y = np.ones((8, 1))
SLEEP = 0.05


class Time:
    """Stands in for the clock of the machine: only what is told to take time does."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def take(self, seconds: float) -> None:
        self.now += seconds


class Samples:
    """A map-style dataset that takes a second a sample."""

    def __init__(self, clock: Time) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        self.clock.take(1.0)
        return X[index], Y[index]


class Slow(ui.Callback):
    """Takes ten seconds a call and a hundred an epoch."""

    def __init__(self, clock: Time) -> None:
        self.clock = clock

    def on_call_end(self, context: Any, record: Any) -> None:
        self.clock.take(10.0)

    def on_epoch_end(self, context: Any, summary: Any) -> None:
        self.clock.take(100.0)


def test_every_second_of_a_fit_is_in_one_phase(monkeypatch, tmp_path):
    clock = Time()
    monkeypatch.setattr("unified_ipu.events.clock.perf_counter", clock)
    forward = ui.optim.SGD(lr=0.1)

    def body(session: ui.Session) -> Any:
        program = compiled(session, optimizer=forward)
        executor: Any = program._executor
        replica_step = executor._replica.forward_backward

        def slow_step(*args: Any, **kwargs: Any) -> None:
            clock.take(1000.0)
            replica_step(*args, **kwargs)

        executor._replica.forward_backward = slow_step

        def error(outputs: Any, batch: Any) -> Any:
            clock.take(10_000.0)
            return 0.0, float(len(outputs))

        clock.take(5.0)  # before the fit: none of it
        return program.fit(
            session.loader(ui.data.dataset(Samples(clock))),
            epochs=2,
            validation=session.loader((X, Y), train=False),
            metrics={"error": error},
            callbacks=[Slow(clock)],
            checkpoint=str(tmp_path),
        )

    (summary,) = run(1, body, data__workers=0)
    expected = {
        "data": 2 * 8 * 1.0,
        "compute": 2 * 4 * 1000.0 + 2 * 4 * 10_000.0,  # 4 micro-batches an epoch, also in tests
        "other": 2 * 2 * 10.0 + 2 * 100.0,  # callbacks: 2 calls an epoch
    }
    assert {name: s for name, s in summary.phases.items() if s} == expected
    assert summary.seconds == sum(expected.values()) == clock.now - 105.0
    assert sum(summary.shares().values()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.timeout(60)
def test_a_late_rank_is_waiting_for_the_others_and_something_else_for_itself():
    def body(session: ui.Session) -> Any:
        class Late(ui.Callback):
            def on_call_end(self, context: Any, record: Any) -> None:
                if session.rank == 1:
                    time.sleep(SLEEP)

        program = compiled(session)
        loader = session.loader((X, Y))
        next(iter([program.step(call) for call in loader]))  # layouts are made
        walls = [time.perf_counter()]
        before = program.clock.seconds()
        walls.append(time.perf_counter())
        summary = program.fit(loader, epochs=2, callbacks=[Late()])
        walls.append(time.perf_counter())
        after = program.clock.seconds()
        walls.append(time.perf_counter())
        mine = {name: after[name] - before.get(name, 0.0) for name in after}
        return summary, mine, walls

    found = run(2, body)
    slept = 4 * SLEEP  # 2 calls an epoch
    (summary, first, _), (_, second, _) = found
    assert first["waiting"] >= 3 * SLEEP  # after the last call nothing has to be waited for
    assert second["other"] >= slept
    for theirs, mine, walls in found:
        assert walls[2] - walls[1] <= sum(mine.values()) <= walls[3] - walls[0]
        assert min(mine.values()) > -1e-3  # nothing was moved out of a phase that was not in it
        assert sum(theirs.phases.values()) == theirs.seconds
        assert (theirs.phases, theirs.seconds) == (summary.phases, summary.seconds)

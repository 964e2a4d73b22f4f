from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unified_ipu as ui
import unified_ipu_numpy
from tests.unified_ipu.session.small_runs import X, Y, refused, run
from unified_ipu.errors import ConfigError
from unified_ipu_numpy import MeanSquaredError, Mlp, NumpyReplica


class LateMlp:
    """Has no parameters before it is told how many features a row has."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.parameters: dict = {}

    def build(self, features: int) -> None:
        self.inner = Mlp((features, 4, 1), seed=self.seed)
        self.parameters = self.inner.parameters

    def forward(self, x: Any, rng: Any) -> Any:
        return self.inner.forward(x, rng)


class LateReplica(NumpyReplica):
    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.is_built = bool(job.model.parameters)
        self.forms: list = []

    def build_from(self, tree: Any) -> None:
        self.forms.append([(leaf.dtype.name, leaf.shape) for leaf in tree])
        job = self.job
        job.model.build(tree[0].shape[1])
        forms = self.forms
        self.__init__(job)  # type: ignore[misc]
        self.forms = forms


@pytest.fixture(autouse=True)
def _late(monkeypatch):
    monkeypatch.setattr(unified_ipu_numpy, "NumpyReplica", LateReplica)


def compiled(session: ui.Session, *, is_late: bool = True) -> ui.Program:
    model: Any = LateMlp(session.rank)
    if not is_late:
        model.build(3)
    return session.compile(
        model, loss=MeanSquaredError("mean"), optimizer=ui.optim.SGD(lr=0.1), adapter="numpy"
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_model_built_from_its_first_batch_trains_as_one_built_before(size):
    def body(is_late: bool) -> Any:
        def train(session: ui.Session) -> Any:
            program = compiled(session, is_late=is_late)
            program.fit(session.loader((X, Y)), epochs=2)
            return program.weights()

        return train

    late, early = run(size, body(True)), run(size, body(False))
    for ours, theirs in zip(late, early):
        assert {n: v.tobytes() for n, v in ours.items()} == {
            n: v.tobytes() for n, v in theirs.items()
        }


@pytest.mark.parametrize("size", [1, 2])
def test_l3_5_a_run_is_resumed_though_the_model_is_not_built_yet(tmp_path, size):
    def body(epochs: int, **fit: Any) -> Any:
        def train(session: ui.Session) -> Any:
            program = compiled(session)
            program.fit(session.loader((X, Y)), epochs=epochs, **fit)
            return program.weights(), program.update

        return train

    run(size, body(1, checkpoint=tmp_path))
    resumed = run(size, body(3, checkpoint=tmp_path, resume="auto"))
    for (ours, updates), (theirs, expected) in zip(resumed, run(size, body(3))):
        assert updates == expected
        assert {n: v.tobytes() for n, v in ours.items()} == {
            n: v.tobytes() for n, v in theirs.items()
        }


def test_a_program_without_a_loader_cannot_be_restored_before_it_is_built(tmp_path):
    def saved(session: ui.Session) -> None:
        program = compiled(session, is_late=False)
        session.save(tmp_path, model=program)

    run(1, saved)
    text = refused(lambda session: session.restore(tmp_path, model=compiled(session)), Exception)
    assert "not in this model" in text


def test_a_rank_without_rows_builds_from_the_form_that_another_rank_tells():
    def body(session: ui.Session) -> Any:
        program = compiled(session)
        rows = [] if session.rank == 0 else [(X[:2].astype(np.float32), Y[:2])]
        record = program.step(rows)
        return record.samples, program.executor._late_replica.forms, program.weights()  # type: ignore[attr-defined]

    first, second = run(2, body)
    assert first[0] == second[0] == 2
    assert first[1] == second[1] == [[("float32", (0, 3)), ("float64", (0, 1))]]
    assert all(np.array_equal(first[2][name], second[2][name]) for name in first[2])


def test_without_any_row_there_is_nothing_to_build_from():
    text = refused(lambda session: compiled(session).step([]), ConfigError, size=2)
    assert "no rank has a row in this update" in text


def test_ranks_that_are_built_on_some_only_are_told_which():
    text = refused(
        lambda session: compiled(session, is_late=session.rank == 1), ConfigError, size=2
    )
    assert "has its weights on rank 0, but not on rank 1" in text

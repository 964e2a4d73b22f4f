"""What users get wrong: refused on every rank, by name, before anything is changed."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, cast

import numpy as np
import pytest

from unified_ipu.adapter import Capability, load_adapter, optim
from unified_ipu.plan import runs_whole_calls
from unified_ipu.testing import samples
from unified_ipu.testing.ranks import Rank, Ranks, outcome_of
from unified_ipu.testing.scenarios import Make, Training, batch_plan, caught, compiled, make
from unified_ipu.testing.subject import Subject
from unified_ipu.testing.suite import AdapterSuite, all_raise


def step_run(*steps: Any, **rest: Any) -> Training:
    """Give each rank one step, on one weight that starts at 1."""
    return Training(
        make("linear", weight=samples.column(1.0)),
        rest.pop("optimizer", optim.SGD(lr=1.0)),
        loss=rest.pop("loss", make("product_loss")),
        steps=[[step] for step in steps],
        **rest,
    )


def fail_in_step(rank: Rank, *, run: Training) -> Any:
    """Compile, then take a step that must fail; the weights must be as before."""
    with rank.session(run.plan, rows=run.rows) as session:
        model = run.model.on(rank.subject)
        program = compiled(rank, session, model, run)
        before = model.canonical(program.weights())
        step = rank.floats((run.steps or ())[rank.world.rank][0])
        result = outcome_of(lambda: program.step(step))
        for name, value in model.canonical(program.weights()).items():
            assert np.array_equal(value, before[name]), f"{name} was changed"
        return result


def compile_with(rank: Rank, *, options: Dict[str, Any], makes: Dict[str, Make]) -> Any:
    """Compile with these arguments."""
    with rank.session() as session:
        given = {**options, **{name: one.on(rank.subject) for name, one in makes.items()}}
        model = rank.subject.linear(samples.column(1.0))
        return outcome_of(lambda: str(rank.compile(session, model, **given)))


def use_wrongly(rank: Rank, *, what: str) -> Any:
    """Do one thing that is refused, with a program and two loaders."""
    with rank.session(batch_plan(2, 2)) as session:
        model = rank.subject.linear(samples.column(1.0))
        loss = rank.subject.mean_squared_error()
        program = rank.compile(session, model, loss=loss, optimizer=optim.SGD(lr=1.0))
        other = rank.subject.linear(samples.column(1.0))
        frozen = rank.compile(session, other, loss=loss)
        data = rank.arrays(samples.ones(4), samples.ones(4))
        train, held = session.loader(data), session.loader(data, train=False)
        batch = rank.floats((samples.ones(2), samples.ones(2)))
        ways: Dict[str, Callable[[], Any]] = {
            "evaluate a training loader": lambda: program.evaluate(train),
            "predict a training loader": lambda: program.predict(train),
            "fit an evaluation loader": lambda: program.fit(held),
            "evaluate arrays": lambda: program.evaluate(batch),
            "gather what is not known": lambda: program.predict(held, gather="some"),
            "train without an optimizer": lambda: frozen.step(batch),
            "step after close": lambda: program.step(batch),
            "leaves of different lengths": lambda: session.loader(
                rank.arrays(samples.ones(4), samples.ones(3))
            ),
        }
        if what == "step after close":
            program.close()
        return outcome_of(ways[what])


def return_nonsense(rank: Rank) -> Any:
    """Use an objective that returns a number instead of a ``Loss``."""
    with rank.session(rows=1) as session:
        model = rank.subject.linear(samples.column(1.0))
        program = rank.compile(
            session,
            model,
            objective=cast("Any", _nonsense),
            optimizer=optim.SGD(lr=1.0),
            **({"weight": _Constant(1.0)} if runs_whole_calls(rank.target) else {}),
        )
        return outcome_of(lambda: program.step(rank.floats((samples.ones(1), samples.ones(1)))))


def _nonsense(model: Any, batch: Any) -> float:
    del model, batch
    return 1.0


def _weight(value: float) -> Callable[[Any], float]:
    return _Constant(value)


class _Constant:
    """A ``weight=`` that can be pickled."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __call__(self, batch: Any) -> float:
        del batch
        return self._value


WRONG_USE = {
    "evaluate a training loader": ("ConfigError", "for training"),
    "predict a training loader": ("ConfigError", "for training"),
    "fit an evaluation loader": ("ConfigError", "training loader"),
    "evaluate arrays": ("ConfigError", "expected a loader"),
    "gather what is not known": ("ConfigError", "'some'"),
    "train without an optimizer": ("ConfigError", "without an optimizer"),
    "step after close": ("ConfigError", "closed"),
    "leaves of different lengths": ("DataError", "4"),
}


class BadInputSuite(AdapterSuite):
    """Required of every adapter: an error that says what to change, on every rank."""

    def test_every_capability_has_a_declared_level(self, subject: Subject) -> None:
        adapter = load_adapter(subject.adapter)
        assert set(adapter.support) == set(Capability)
        assert adapter.name == subject.adapter

    @pytest.mark.parametrize("what", sorted(WRONG_USE))
    def test_a_wrong_use_is_refused(self, ranks: Ranks, what: str) -> None:
        kind, words = WRONG_USE[what]
        for message in all_raise(ranks, use_wrongly, 2, kind, what=what):
            assert words in message

    @pytest.mark.parametrize(
        ("step", "kind", "words"),
        [
            ((samples.ones(2), samples.ones(3)), "DataError", ["[0] has 2 rows", "[1] has 3"]),
            ((samples.ones(17), samples.ones(17)), "ConfigError", ["17", "16"]),
            ((), "DataError", ["no array"]),
            ((1.0, samples.ones(1)), "DataError", ["batch[0]"]),
            ([(samples.ones(1), samples.ones(1)), (samples.ones(17),)], "ConfigError", ["17"]),
        ],
        ids=["lengths", "too-many-rows", "empty", "no-rows", "second-of-a-list"],
    )
    def test_a_wrong_batch_is_refused(
        self, ranks: Ranks, step: Any, kind: str, words: List[str]
    ) -> None:
        (message,) = all_raise(ranks, fail_in_step, 1, kind, run=step_run(step))
        for word in words:
            assert word in message

    @pytest.mark.parametrize(
        ("options", "makes"),
        [
            ({"loss_reduction": "average"}, {"loss": make("product_loss")}),
            ({"loss_reduction": "sum"}, {"loss": make("mean_squared_error")}),
            ({}, {"loss": make("product_loss"), "objective": make("token_objective")}),
            ({"objective": 3}, {}),
            ({"optimizer": "sgd"}, {"loss": make("product_loss")}),
            ({"optimizer": object()}, {"loss": make("product_loss")}),
            ({"optimizer": optim.SGD(lr=1.0), "trainable": ["x"]}, {"loss": make("product_loss")}),
            (
                {"optimizer": optim.SGD(lr=1.0), "schedule": "cosine"},
                {"loss": make("product_loss")},
            ),
            ({"adapter": "no such adapter"}, {"loss": make("product_loss")}),
        ],
        ids=[
            "unknown-reduction",
            "contradicting-reduction",
            "two-losses",
            "objective-is-no-callable",
            "optimizer-is-a-word",
            "optimizer-is-an-object",
            "unknown-trainable",
            "schedule-is-a-word",
            "unknown-adapter",
        ],
    )
    def test_compile_refuses_what_it_cannot_use(
        self, ranks: Ranks, options: Dict[str, Any], makes: Dict[str, Make]
    ) -> None:
        all_raise(ranks, compile_with, 1, "UnifiedIpuError", options=options, makes=makes)

    def test_l2_9_a_loss_that_returns_one_number_refuses_padding(self, ranks: Ranks) -> None:
        run = Training(
            make("linear", weight=samples.column(1.0)),
            optim.SGD(lr=1.0),
            loss=make("product_loss"),
            data=(samples.ones(3), samples.ones(3)),
            plan=batch_plan(4, 4, batch={"remainder": "pad"}),
        )
        (message,) = all_raise(ranks, caught, 1, "ConfigError", run=run)
        assert 'loss_reduction="none"' in message

    def test_one_number_cannot_weigh_samples(self, ranks: Ranks) -> None:
        step = (samples.ones(2), samples.ones(2), np.array([1.0, 2.0]))
        (message,) = all_raise(ranks, fail_in_step, 1, "ConfigError", run=step_run(step))
        assert 'loss_reduction="none"' in message

    def test_an_objective_must_return_a_loss(self, ranks: Ranks) -> None:
        (message,) = all_raise(ranks, return_nonsense, 1, "ConfigError")
        assert "Loss(" in message

    @pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
    def test_a_weight_that_counts_nothing_sensible_ends_all_ranks(
        self, ranks: Ranks, value: float
    ) -> None:
        batch = (samples.ones(1), samples.ones(1))
        run = step_run(batch, batch, options={"weight": _weight(value)}, rows=1)
        for message in all_raise(ranks, fail_in_step, 2, "NumericsError", run=run):
            assert "weight W" in message

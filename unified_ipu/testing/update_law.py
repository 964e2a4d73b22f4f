"""The update law on an adapter: what one change of the weights is.

One suite for clauses L1.1 to L1.11 and L2.11, with literals worked out by hand and the float64
oracle; splitting it would part clauses that are one formula.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Sequence

import numpy as np
import pytest

from unified_ipu.adapter import Capability, optim
from unified_ipu.testing import samples
from unified_ipu.testing.float_types import near
from unified_ipu.testing.on_devices import assert_norms, is_device, reduction_of
from unified_ipu.testing.ranks import Rank, Ranks
from unified_ipu.testing.scenarios import (
    Make,
    Trained,
    Training,
    batch_plan,
    caught,
    compiled,
    halving,
    make,
    names_of,
    train,
)
from unified_ipu.testing.subject import Model
from unified_ipu.testing.suite import AdapterSuite, all_raise, holds, relative_error, requires
from unified_ipu.testing.tokens import tokens, tokens_run

SPLITS = [(16, 1, 1), (4, 1, 4), (4, 4, 1), (4, 2, 2), (2, 2, 4), (2, 4, 2), (1, 16, 1)]


def linear(*weight: float) -> Make:
    """A model of one output and as many inputs as given weights."""
    return make("linear", weight=samples.column(*weight))


def first_weight(trained: Trained) -> float:
    """The one weight of ``linear(w)``."""
    return float(trained.weights["weight"][0, 0])


def product_run(data: Any, plan: Any, *, lr: float = 1.0, **rest: Any) -> Training:
    """Train one weight from 0 on ``w * x``: the gradient of a row is its x."""
    loss_reduction = rest.pop("reduction", None)
    if loss_reduction is not None:
        rest["options"] = {"loss_reduction": loss_reduction}
    return Training(
        linear(0.0),
        rest.pop("optimizer", optim.SGD(lr=lr)),
        loss=make("product_loss", reduction=loss_reduction or "mean"),
        data=None if data is None else (data, samples.ones(len(data))),
        plan=plan,
        **rest,
    )


class UpdateLawSuite(AdapterSuite):
    """L1 and L2.11, required of every adapter."""

    @holds("L1.4", "L2.6")
    @pytest.mark.case("O-G7")
    @pytest.mark.parametrize(
        ("reduction", "lr", "gradient", "weight"),
        [("mean", 0.001, 187.0, 0.813), ("sum", 0.0001, 2992.0, 0.7008)],
    )
    def test_l1_3_each_way_to_build_a_global_batch_gives_one_update(
        self, ranks: Ranks, reduction: str, lr: float, gradient: float, weight: float
    ) -> None:
        data = (samples.column(*range(1, 17)), np.zeros((16, 1)))
        for micro, accumulate, replicas in SPLITS:
            assert micro * accumulate * replicas == 16
            run = Training(
                linear(1.0),
                optim.SGD(lr=lr),
                loss=make("mean_squared_error"),
                data=data,
                plan=batch_plan(16, micro, update={"reduction": reduction}),
            )
            for trained in ranks.run(train, replicas, run=run):
                assert first_weight(trained) == near(ranks, weight, rel=1e-13)
                assert_norms(ranks, [trained.records[0].grad_norm], [gradient])
                assert trained.records[0].weight == 16.0

    @holds("L1.1", "L6.3")
    @pytest.mark.case("O-G1")
    def test_l1_3_token_losses_are_divided_by_all_tokens(self, ranks: Ranks) -> None:
        first, second = tokens(2.0, 10), tokens(1.0, 100)
        both = {key: np.concatenate([first[key], second[key]]) for key in first}
        ways: List[Sequence[Sequence[Any]]] = [
            [[[first, second]]],
            [[[first]], [[second]]],
            [[both]],
        ]
        for steps in ways:
            for trained in ranks.run(train, len(steps), run=tokens_run(ranks, steps)):
                record = trained.records[0]
                assert record.loss == near(ranks, 120 / 110, rel=1e-13)
                assert_norms(ranks, [record.grad_norm], [120 / 110])
                assert 1.0 - first_weight(trained) == near(ranks, 120 / 110, rel=1e-13)
                assert record.weight == 110.0
                assert record.metrics["x"] == near(ranks, 120 / 110, rel=1e-13)

    @pytest.mark.case("O-G2")
    @pytest.mark.parametrize("size", [1, 2])
    def test_l1_3_a_short_last_group_is_divided_by_its_own_weight(
        self, ranks: Ranks, size: int
    ) -> None:
        run = product_run(samples.column(1, 2, 3, 4, 5), batch_plan(2, 1), lr=0.1)
        for trained in ranks.run(train, size, run=run):
            norms = [record.grad_norm for record in trained.records]
            assert_norms(ranks, norms, [1.5, 3.5, 5.0])
            assert first_weight(trained) == near(ranks, -1.0, rel=1e-13)

    @pytest.mark.case("O-G3")
    def test_l1_8_decay_acts_once_an_update(self, ranks: Ranks) -> None:
        run = Training(
            linear(1.0),
            optim.AdamW(lr=0.1, weight_decay=0.5),
            loss=make("product_loss"),
            data=(np.zeros((3, 1)), samples.ones(3)),
            plan=batch_plan(3, 1),
        )
        assert first_weight(ranks.run(train, run=run)[0]) == near(ranks, 0.95, rel=1e-13)

    @pytest.mark.case("O-G3")
    def test_l1_8_step_counters_move_once_an_update(self, ranks: Ranks) -> None:
        run = product_run(samples.ones(6), batch_plan(3, 1), optimizer=optim.Adam(lr=0.1))
        assert first_weight(ranks.run(train, run=run)[0]) == pytest.approx(-0.2, abs=1e-6)

    @pytest.mark.case("O-G5")
    @pytest.mark.parametrize("size", [1, 2])
    def test_l1_10_what_some_micro_batches_use_is_reduced_and_the_unused_stays(
        self, ranks: Ranks, size: int
    ) -> None:
        def passes(*values: float) -> List[Any]:
            return [
                (np.array([[value, branch]]), samples.ones(1))
                for branch in (0, 1)
                for value in values
            ]

        run = Training(
            make("branches", a=1.0, b=1.0, c=1.0, frozen=1.0),
            optim.SGD(lr=1.0, momentum=0.9, weight_decay=0.5),
            loss=make("product_loss"),
            steps=[[passes(1.0, 2.0)]] if size == 1 else [[passes(1.0)], [passes(2.0)]],
            rows=1,
            options={"trainable": ["a", "b", "c"]},
        )
        for trained in ranks.run(train, size, run=run):
            # g = (1 + 2) / 4 = 0.75, and decay adds 0.5 to what has a gradient.
            assert trained.weights["a"] == near(ranks, [-0.25], rel=1e-13)
            assert trained.weights["b"] == near(ranks, [-0.25], rel=1e-13)
            assert trained.weights["c"].tolist() == [1.0]
            assert trained.weights["frozen"].tolist() == [1.0]

    @pytest.mark.parametrize("users", [(0,), (1,)])
    def test_l1_10_what_one_rank_uses_is_used_on_all(
        self, ranks: Ranks, users: Sequence[int]
    ) -> None:
        steps = []
        for rank in range(2):
            branch = 0.0 if rank in users else 1.0
            steps.append([[(np.array([[2.0, branch]]), samples.ones(1))]])
        run = Training(
            make("branches", a=0.0, b=0.0, c=0.0, frozen=0.0),
            optim.SGD(lr=1.0),
            loss=make("product_loss"),
            steps=steps,
            rows=1,
            options={"trainable": ["a", "b", "c"]},
        )
        for trained in ranks.run(train, 2, run=run):
            found = [float(trained.weights[name][0]) for name in ("a", "b", "c", "frozen")]
            assert found == [-1.0, -1.0, 0.0, 0.0]

    @pytest.mark.case("O-G6")
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    @pytest.mark.parametrize("size", [1, 2])
    def test_l1_8_clipping_comes_once_after_the_reduction(
        self, ranks: Ranks, size: int, reduction: str
    ) -> None:
        update = {"reduction": reduction, "clip_norm": 1.0}
        run = Training(
            linear(0.0, 0.0),
            optim.SGD(lr=1.0),
            loss=make("product_loss"),
            data=(np.array([[2.0, 0.0], [0.0, 2.0]]), samples.ones(2)),
            plan=batch_plan(2, 1, update=update),
        )
        norm = math.sqrt(2.0) if reduction == "mean" else math.sqrt(8.0)
        for trained in ranks.run(train, size, run=run):
            assert -trained.weights["weight"][:, 0] == pytest.approx([math.sqrt(0.5)] * 2)
            assert_norms(ranks, [trained.records[0].grad_norm], [norm])

    @pytest.mark.case("O-U1")
    def test_l1_3_a_rank_without_samples_takes_part(self, ranks: Ranks) -> None:
        def batch(x: float) -> Any:
            return (samples.column(x), samples.ones(1))

        run = product_run(
            None, {}, steps=[[batch(1), batch(2), batch(3)], [batch(5), [], []]], rows=1
        )
        for trained in ranks.run(train, 2, run=run):
            norms = [record.grad_norm for record in trained.records]
            assert_norms(ranks, norms, [3.0, 2.0, 3.0])
            assert [record.samples for record in trained.records] == [2, 1, 1]
            assert first_weight(trained) == -8.0

    @pytest.mark.case("O-U2")
    def test_l1_3_replicas_with_unequal_batches_form_one_mean(self, ranks: Ranks) -> None:
        steps = [
            [(samples.column(2, 2, 2), samples.ones(3))],
            [(samples.column(10), samples.ones(1))],
        ]
        run = product_run(None, {}, steps=steps, reduction=reduction_of(ranks), rows=3)
        for trained in ranks.run(train, 2, run=run):
            assert_norms(ranks, [trained.records[0].grad_norm], [4.0])
            assert first_weight(trained) == -4.0

    def test_l1_2_a_sample_weight_scales_the_loss_and_not_its_count(self, ranks: Ranks) -> None:
        rows = (samples.column(1, 2, 3), samples.ones(3), np.array([1.0, 0.5, 2.0]))
        run = Training(
            linear(0.0),
            optim.SGD(lr=1.0),
            loss=make("product_loss", reduction="none"),
            steps=[[rows]],
            rows=3,
            options={"loss_reduction": "none"},
        )
        trained = ranks.run(train, run=run)[0]
        assert first_weight(trained) == near(ranks, -8.0 / 3.0, rel=1e-13)
        assert trained.records[0].weight == 3.0

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_l1_2_the_reduction_of_a_loss_does_not_show(self, ranks: Ranks, reduction: str) -> None:
        run = Training(
            linear(0.0),
            optim.SGD(lr=1.0),
            loss=make("product_loss", reduction=reduction),
            data=(samples.column(1, 2, 6), samples.ones(3)),
            plan=batch_plan(3, 2),
            options={"loss_reduction": reduction},
        )
        assert first_weight(ranks.run(train, run=run)[0]) == near(ranks, -3.0, rel=1e-13)

    def test_native_tensors_train_like_arrays(self, ranks: Ranks) -> None:
        batch = (samples.column(1, 2, 6), samples.ones(3))
        run = product_run(None, {}, steps=[[batch]], as_tensors=True, rows=3)
        assert first_weight(ranks.run(train, run=run)[0]) == -3.0


class UpdateDecisionSuite(AdapterSuite):
    """L1.5 to L1.7 and L1.11: what does not count, does not happen, or ends all ranks."""

    @holds("L2.11")
    def test_l1_6_nothing_happens_when_nothing_counts(self, ranks: Ranks) -> None:
        targets = np.array([0, 1, samples.IGNORED, samples.IGNORED, 1, 1])
        run = Training(
            make("linear", weight=np.zeros((3, 2))),
            optim.AdamW(lr=0.5, weight_decay=0.5),
            loss=make("cross_entropy", ignore_index=samples.IGNORED),
            data=(samples.ones(6, 3), targets),
            plan=batch_plan(2, 1),
            options={"schedule": halving},
        )
        for size in (1, 2):
            for trained in ranks.run(train, size, run=run):
                assert [record.skipped for record in trained.records] == [0, 1, 0]
                assert [record.weight for record in trained.records] == [2.0, 0.0, 2.0]
                assert [record.lr for record in trained.records] == [0.5, 0.25, 0.25]
                assert relative_error(trained.trace[0], trained.trace[1]) == 0.0
                assert relative_error(trained.trace[1], trained.trace[2]) > 1e-3
                assert trained.happened == 2
                assert trained.counts["updates_without_weight"] == 1

    def test_l1_5_a_rank_whose_targets_are_all_ignored_does_not_count(self, ranks: Ranks) -> None:
        # Were it run, 0 times infinity would spoil the gradient.
        x = np.array([[1.0], [math.inf]])
        run = Training(
            make("linear", weight=np.zeros((1, 2))),
            optim.SGD(lr=1.0),
            loss=make("cross_entropy", ignore_index=samples.IGNORED),
            data=(x, np.array([0, samples.IGNORED])),
            plan=batch_plan(2, 1),
        )
        for trained in ranks.run(train, 2, run=run):
            assert trained.weights["weight"] == near(ranks, np.array([[0.5, -0.5]]), rel=1e-13)
            assert trained.records[0].weight == 1.0
            assert trained.records[0].loss == near(ranks, math.log(2.0), rel=1e-13)

    def test_l1_6_an_update_that_no_rank_has_samples_for_does_not_happen(
        self, ranks: Ranks
    ) -> None:
        run = product_run(None, {}, steps=[[[]], [[]]])
        for trained in ranks.run(train, 2, run=run):
            assert (trained.happened, trained.records[0].skipped) == (0, 1)
            assert math.isnan(trained.records[0].loss)
            assert first_weight(trained) == 0.0

    @pytest.mark.parametrize("bad", [math.inf, math.nan])
    def test_l1_7_a_gradient_that_is_not_finite_ends_all_ranks_alike(
        self, ranks: Ranks, bad: float
    ) -> None:
        def batch(x: float) -> Any:
            return (samples.column(x), samples.ones(1))

        steps = [[batch(1), batch(1)], [batch(1), batch(bad)], [batch(1), batch(1)]]
        results = ranks.run(train_then_fail, 3, run=product_run(None, {}, steps=steps, rows=1))
        name = ranks.run(names_of, model=linear(0.0))[0]["weight"]
        for kinds, message, weight in results:
            assert "NumericsError" in kinds
            assert "update 1" in message
            if is_device(ranks):
                # It sees the loss only, and afterwards.
                assert "the weights are changed already" in message
                continue
            assert repr(name) in message
            assert "rank(s) 1;" in message
            assert weight == -1.0, "the weights of the update before must stay"

    def test_l1_7_alone_it_is_the_same_error(self, ranks: Ranks) -> None:
        run = product_run(samples.column(1, math.inf), batch_plan(1, 1))
        (message,) = all_raise(ranks, caught, 1, "NumericsError", run=run)
        assert "update 1" in message

    @pytest.mark.parametrize("size", [1, 2])
    def test_l1_11_a_penalty_weighs_the_same_however_the_update_is_split(
        self, ranks: Ranks, size: int
    ) -> None:
        first, second = tokens(2.0, 10), tokens(1.0, 100)
        ways: Dict[int, List[Any]] = {
            1: [[[[first, second]]], [[[second, first]]]],
            2: [[[[first]], [[second]]], [[[first, second]], [[]]]],
        }
        if is_device(ranks):
            ways[2].pop()  # a process without any row has nothing to feed yet
        for steps in ways[size]:
            for trained in ranks.run(train, size, run=tokens_run(ranks, steps, penalty=0.25)):
                # The gradient of the data, and 2 * 0.25 * w.
                assert 1.0 - first_weight(trained) == near(ranks, 120 / 110 + 0.5, rel=1e-13)
                assert trained.records[0].loss == near(ranks, 120 / 110 + 0.25, rel=1e-13)

    @requires(Capability.SHARED_PARAMETERS)
    @pytest.mark.parametrize("size", [1, 2])
    def test_l1_9_a_tied_parameter_counts_once_in_the_norm(self, ranks: Ranks, size: int) -> None:
        run = Training(
            make("tied", weight=3.0),
            optim.SGD(lr=1.0),
            loss=make("product_loss"),
            data=(samples.ones(2), samples.ones(2)),
            plan=batch_plan(2, 1, update={"clip_norm": 1.0}),
        )
        for trained in ranks.run(train, size, run=run):
            assert_norms(ranks, [trained.records[0].grad_norm], [6.0])
            assert trained.weights["weight"] == near(ranks, [2.0], rel=1e-13)
            assert trained.weights["twin"].tolist() == trained.weights["weight"].tolist()


def train_then_fail(rank: Rank, *, run: Training) -> Any:
    """Take every step; the last one must fail. Kinds, message and weight afterwards."""
    steps = run.steps or ()
    with rank.session(run.plan, rows=run.rows) as session:
        model: Model = run.model.on(rank.subject)
        program = compiled(rank, session, model, run)
        *good, bad = steps[rank.world.rank]
        for step in good:
            program.step(rank.floats(step))
        kinds, message = ["nothing"], ""
        try:
            program.step(rank.floats(bad))
        except ArithmeticError as error:
            kinds, message = [kind.__name__ for kind in type(error).__mro__], str(error)
        weight = model.canonical(program.weights())["weight"]
        return kinds, message, float(weight[0, 0])

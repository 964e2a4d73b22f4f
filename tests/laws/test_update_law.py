"""The update law on several ranks (threads, numpy adapter), against literals and plain numpy.

Functions without fixtures, so that ``test_mutants.py`` can run each under a broken engine.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import pytest

import unified_ipu as ui
from unified_ipu.adapter import Call, MicroBatch, Update
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu_numpy import Differentiable, MeanSquaredError, SoftmaxCrossEntropy


class Linear:
    """y = x @ w, float64."""

    def __init__(self, weight: Any) -> None:
        self.parameters: Dict[str, Any] = {"w": np.array(weight, np.float64)}

    def forward(self, x: Any, rng: Any = None) -> Any:
        w = self.parameters["w"]
        return x @ w, lambda d: {"w": x.T @ d}


def plan_of(size: int, **settings: Any) -> ui.Plan:
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    return ui.Plan().replace({"mesh.data": size, **changes})


def train(
    size: int,
    body: Callable[[ui.Session], Any],
    **settings: Any,
) -> List[Any]:
    """Run ``body(session)`` on each of ``size`` ranks and return what they returned."""

    def rank(world: Any, communicator: Any) -> Any:
        plan = plan_of(size, **settings)
        with ui.Session(plan, world=world, communicator=communicator, argv=[]) as session:
            return body(session)

    return run_ranks(size, rank, timeout_seconds=20.0)


def mean_gradient_objective(model: Any, batch: Any) -> ui.Loss:
    """S = sum of w * x over the rows: its gradient is the sum of x."""
    (x,) = batch
    w = model.parameters["w"]
    value = float((x @ w).sum())
    gradient = x.sum(axis=0).reshape(w.shape)
    return ui.Loss(Differentiable(value, {"w": gradient}), weight=float(len(x)))


def column(values: Sequence[float]) -> Any:
    return np.array(values, np.float64).reshape(-1, 1)


SPLITS = [(16, 1, 1), (4, 1, 4), (4, 4, 1), (4, 2, 2), (2, 2, 4), (2, 4, 2), (1, 16, 1), (16, 1, 3)]


def _square_loss(split: Sequence[int], reduction: str, lr: float) -> None:
    micro, _, replicas = split
    x = column(range(1, 17))

    def body(session: ui.Session) -> Any:
        model = Linear([[1.0]])
        program = session.compile(
            model, loss=MeanSquaredError("mean"), optimizer=ui.optim.SGD(lr=lr)
        )
        loader = session.loader((x, np.zeros((16, 1))))
        (record,) = [program.step(call) for call in loader]
        return float(model.parameters["w"][0, 0]), record

    results = train(
        replicas,
        body,
        batch__global_batch_size=16,
        batch__micro_batch_size=micro,
        update__reduction=reduction,
    )
    gradient, weight = (187.0, 0.813) if reduction == "mean" else (2992.0, 0.7008)
    for value, record in results:
        assert value == pytest.approx(weight, abs=1e-12)
        assert record.grad_norm == pytest.approx(gradient, rel=1e-12)
        assert record.weight == 16.0
        assert record.samples == 16


@pytest.mark.case("O-G7")
def test_l1_every_split_of_16_samples_gives_the_gradient_187():
    for split in SPLITS:
        _square_loss(split, "mean", 0.001)


@pytest.mark.case("O-G7")
def test_l1_with_sum_reduction_every_split_gives_2992():
    for split in SPLITS:
        _square_loss(split, "sum", 0.0001)


@pytest.mark.case("O-G2")
def test_l1_the_short_last_update_is_divided_by_what_is_in_it():
    x = column([1, 2, 3, 4, 5])

    def body(session: ui.Session) -> Any:
        model = Linear([[0.0]])
        program = session.compile(
            model, objective=mean_gradient_objective, optimizer=ui.optim.SGD(lr=0.1)
        )
        norms = [program.step(call).grad_norm for call in session.loader((x,))]
        return norms, float(model.parameters["w"][0, 0])

    for replicas in (1, 2):
        settings: Dict[str, Any] = {"batch__global_batch_size": 2, "batch__micro_batch_size": 1}
        for norms, weight in train(replicas, body, data__shuffle=False, **settings):
            assert norms == pytest.approx([1.5, 3.5, 5.0], rel=1e-14)
            assert weight == pytest.approx(-1.0, rel=1e-14)


@pytest.mark.case("O-G1")
def test_l1_token_means_are_weighted_by_their_tokens():
    counts, slopes = column([10, 100]), column([2.0, 1.0])

    def objective(model: Any, batch: Any) -> ui.Loss:
        count, slope = batch
        tokens = float(count.sum())
        gradient = float((count * slope).sum())
        value = gradient * float(model.parameters["w"][0, 0])
        return ui.Loss(Differentiable(value, {"w": np.array([[gradient]])}), weight=tokens)

    def body(session: ui.Session) -> Any:
        model = Linear([[1.0]])
        program = session.compile(model, objective=objective, optimizer=ui.optim.SGD(lr=0.1))
        return [program.step(call) for call in session.loader((counts, slopes))]

    for replicas, micro in ((1, 1), (2, 1), (1, 2)):
        settings = {"batch__global_batch_size": 2, "batch__micro_batch_size": micro}
        for (record,) in train(replicas, body, **settings):
            assert record.loss == pytest.approx(120 / 110, rel=1e-14)
            assert record.grad_norm == pytest.approx(120 / 110, rel=1e-14)
            assert record.weight == 110.0


@pytest.mark.case("O-G6")
def test_l1_clipping_comes_after_the_reduction():
    gradients = np.array([[2.0, 0.0], [0.0, 2.0]])

    def objective(model: Any, batch: Any) -> ui.Loss:
        (g,) = batch
        return ui.Loss(Differentiable(0.0, {"w": g.sum(axis=0)}), weight=float(len(g)))

    def body(session: ui.Session) -> Any:
        model = Linear([0.0, 0.0])
        program = session.compile(model, objective=objective, optimizer=ui.optim.SGD(lr=1.0))
        for call in session.loader((gradients,)):
            program.step(call)
        return -model.parameters["w"]

    for replicas in (1, 2):
        for reduction in ("mean", "sum"):
            for clipped in train(
                replicas,
                body,
                batch__global_batch_size=2,
                batch__micro_batch_size=1,
                update__clip_norm=1.0,
                update__reduction=reduction,
            ):
                assert clipped == pytest.approx([math.sqrt(0.5)] * 2, rel=1e-12)


@pytest.mark.case("O-U2")
def test_l1_replicas_with_unequal_batches_count_by_samples():
    mine = {0: column([2, 2, 2]), 1: column([10])}

    def body(session: ui.Session) -> Any:
        model = Linear([[0.0]])
        program = session.compile(
            model, objective=mean_gradient_objective, optimizer=ui.optim.SGD(lr=1.0)
        )
        record = program.step((mine[session.rank],))
        return record, float(model.parameters["w"][0, 0])

    for record, weight in train(2, body):
        assert record.samples == 4
        assert record.grad_norm == pytest.approx(4.0, rel=1e-14)
        assert weight == pytest.approx(-4.0, rel=1e-14)


@pytest.mark.case("O-U1")
def test_l1_a_rank_that_has_run_out_takes_part_without_samples():
    mine = {0: [[1.0], [2.0], [3.0]], 1: [[5.0], [], []]}

    def body(session: ui.Session) -> Any:
        model = Linear([[0.0]])
        program = session.compile(
            model, objective=mean_gradient_objective, optimizer=ui.optim.SGD(lr=1.0)
        )
        norms = []
        for rows in mine[session.rank]:
            batch = [(column(rows),)] if rows else []
            norms.append(program.step(batch).grad_norm)
        return norms, float(model.parameters["w"][0, 0])

    results = train(2, body)
    for norms, _ in results:
        assert norms == pytest.approx([3.0, 2.0, 3.0], rel=1e-14)
    assert results[0][1] == results[1][1]


@pytest.mark.case("O-G8")
def test_l2_the_schedule_steps_once_an_update():
    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([[0.0]]),
            objective=mean_gradient_objective,
            optimizer=ui.optim.SGD(lr=1.0),
            schedule=lambda update: 0.5**update,
        )
        rates = [program.step(call).lr for call in session.loader((column(range(16)),))]
        return rates, program.updates_happened

    settings = {"batch__global_batch_size": 4, "batch__micro_batch_size": 1}
    for rates, updates in train(2, body, **settings):
        assert rates == [1.0, 0.5, 0.25, 0.125]
        assert updates == 4


def test_l1_an_update_whose_weight_is_0_does_not_happen():
    targets = np.array([0, 1, -1, -1, 1, 1])  # -1 is ignored: the second update counts nothing
    x = np.ones((6, 3))

    def body(session: ui.Session) -> Any:
        model = Linear(np.zeros((3, 2)))
        program = session.compile(
            model,
            loss=SoftmaxCrossEntropy(ignore_index=-1),
            optimizer=ui.optim.AdamW(lr=0.1, weight_decay=0.5),
            schedule=lambda update: 0.5**update,
        )
        weights, records = [], []
        for call in session.loader((x, targets)):
            records.append(program.step(call))
            weights.append(model.parameters["w"].copy())
        return records, weights, session.counters["updates_without_weight"]

    for replicas in (1, 2):
        for records, weights, counted in train(
            replicas,
            body,
            batch__global_batch_size=2,
            batch__micro_batch_size=1,
            data__shuffle=False,
        ):
            assert [record.updates for record in records] == [1, 0, 1]
            assert [record.skipped for record in records] == [0, 1, 0]
            assert [record.weight for record in records] == [2.0, 0.0, 2.0]
            assert [record.lr for record in records] == pytest.approx([0.1, 0.05, 0.05])
            assert np.array_equal(weights[0], weights[1])
            assert not np.array_equal(weights[1], weights[2])
            assert math.isnan(records[1].loss)
            assert counted == 1


def test_l1_a_gradient_that_is_not_finite_on_one_rank_is_an_error_on_all():
    mine = {0: 1.0, 1: math.inf, 2: 1.0}

    def objective(model: Any, batch: Any) -> ui.Loss:
        (x,) = batch
        return ui.Loss(Differentiable(0.0, {"w": x.sum(axis=0)}), weight=float(len(x)))

    def body(session: ui.Session) -> Any:
        model = Linear([0.5])
        program = session.compile(model, objective=objective, optimizer=ui.optim.SGD(lr=1.0))
        program.step((np.array([[1.0]]),))
        with pytest.raises(ui.NumericsError) as caught:
            program.step((np.array([[mine[session.rank]]]),))
        return str(caught.value), float(model.parameters["w"][0])

    for rank, (text, weight) in enumerate(train(3, body)):
        assert "update 1" in text
        assert "'w'" in text
        assert "rank(s) 1;" in text
        assert text.startswith(f"rank {rank}: ")
        assert weight == -0.5


def test_l1_padding_counts_for_nothing():
    x, y = column([1, 2, 3]), column([0, 0, 0])

    def body(session: ui.Session) -> Any:
        model = Linear([[1.0]])
        program = session.compile(
            model, loss=MeanSquaredError("none"), optimizer=ui.optim.SGD(lr=0.1)
        )
        loader = session.loader((x, y))
        records = [program.step(call) for call in loader]
        return records, float(model.parameters["w"][0, 0]), loader.certificate()

    for replicas in (1, 2):
        for records, weight, certificate in train(
            replicas,
            body,
            batch__global_batch_size=4,
            batch__micro_batch_size=2,
            batch__remainder="pad",
        ):
            # g = 2 * (1 + 4 + 9) / 3
            assert weight == pytest.approx(1.0 - 0.1 * 28 / 3, rel=1e-14)
            assert [(record.samples, record.weight) for record in records] == [(3, 3.0)]
            assert certificate.ok
            assert (certificate.delivered, certificate.padded) == (3, 1)


def test_l3_masks_depend_on_the_micro_batch_and_not_on_the_rank():
    class Noise:
        """S = w . noise, so that the gradient shows the random numbers of forward."""

        def __init__(self) -> None:
            self.parameters = {"w": np.zeros(8)}

        def forward(self, x: Any, rng: Any = None) -> Any:
            noise = rng.random((len(x), 8))
            return noise @ self.parameters["w"], lambda d: {"w": noise.T @ d}

    def loss(outputs: Any, targets: Any) -> Any:
        return outputs, np.ones_like(outputs)

    def body(session: ui.Session) -> Any:
        model = Noise()
        program = session.compile(
            model, loss=loss, loss_reduction="none", optimizer=ui.optim.SGD(lr=1.0)
        )
        seen = []
        for call in session.loader((np.zeros((8, 1)), np.zeros(8))):
            before = model.parameters["w"].copy()
            program.step(call)
            seen.append(before - model.parameters["w"])
        return seen

    settings = {"batch__global_batch_size": 4, "batch__micro_batch_size": 1}
    alone = train(1, body, **settings)[0]
    assert not np.allclose(alone[0], alone[1])
    for replicas in (2, 4):
        for seen in train(replicas, body, **settings):
            np.testing.assert_allclose(seen, alone, rtol=1e-12)


@pytest.mark.case("O-S7")
def test_l2_epochs_have_orders_of_their_own_and_repeat_in_a_new_run():
    def body(session: ui.Session) -> Any:
        loader = session.loader((np.arange(10.0), np.arange(10)))
        epochs: List[List[int]] = []
        for _ in range(2):
            ids: List[int] = []
            for call in loader:
                for update in call.updates:
                    for micro in update.micro_batches:
                        ids.extend(int(i) for i in micro.ids)
            epochs.append(ids)
        return epochs

    def joined() -> List[List[int]]:
        ranks = train(2, body, batch__global_batch_size=2, batch__micro_batch_size=1)
        return [[i for pair in zip(*epoch) for i in pair] for epoch in zip(*ranks)]

    first, second = joined()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert joined() == [first, second]


def test_l1_updates_in_one_call_share_the_learning_rate_and_step_the_schedule_after():
    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([[0.0]]),
            objective=mean_gradient_objective,
            optimizer=ui.optim.SGD(lr=1.0),
            schedule=lambda update: 1.0 / (1 + update),
        )
        records = [program.step(call) for call in session.loader((column(range(10)),))]
        return [(record.lr, record.updates, record.samples) for record in records]

    settings = {"batch__global_batch_size": 2, "batch__micro_batch_size": 1}
    for seen in train(2, body, batch__updates_per_call=2, **settings):
        assert seen == [(1.0, 2, 4), (pytest.approx(1 / 3), 2, 4), (pytest.approx(0.2), 1, 2)]


def test_l1_objective_metrics_are_sums_over_the_world_and_an_unequal_name_is_an_error_on_all():
    names = {0: "size", 1: "size"}

    def body(session: ui.Session) -> Any:
        def objective(model: Any, batch: Any) -> ui.Loss:
            (x,) = batch
            differentiable = Differentiable(0.0, {"w": x.sum(axis=0).reshape(1, 1)})
            metrics = {names[session.rank]: (float(x.sum()), len(x))}
            return ui.Loss(differentiable, weight=len(x), metrics=metrics)

        program = session.compile(
            Linear([[0.0]]), objective=objective, optimizer=ui.optim.SGD(lr=0.0001)
        )
        first = program.step((column([1.0 + session.rank]),)).metrics
        if session.rank == 1:
            names[1] = "other"
        with pytest.raises(ui.ConfigError, match=r"metrics on 1 rank\(s\) are not \['size'\]"):
            program.step((column([1.0]),))
        return first

    assert train(2, body) == [{"size": 1.5}, {"size": 1.5}]


def test_l1_a_rank_whose_first_batch_is_empty_learns_the_metric_names():
    def objective(model: Any, batch: Any) -> ui.Loss:
        (x,) = batch
        gradient = {"w": np.ones((1, 1))}
        return ui.Loss(Differentiable(0.0, gradient), weight=1.0, metrics={"m": (len(x), 1.0)})

    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([[0.0]]), objective=objective, optimizer=ui.optim.SGD(lr=0.1)
        )
        batch = [] if session.rank == 0 else [(column([1, 2, 3]),)]
        return program.step(batch).metrics

    assert train(2, body) == [{"m": 3.0}, {"m": 3.0}]


def test_l1_ranks_that_run_other_samples_than_the_plan_says_are_found():
    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([[0.0]]),
            objective=mean_gradient_objective,
            optimizer=ui.optim.SGD(lr=0.1),
        )
        micro = MicroBatch(index=session.rank, tree=(column([1.0]),), rows=1)
        call = Call(updates=(Update(number=0, micro_batches=[micro], samples=3),))
        with pytest.raises(ui.DataError, match="ran 2 samples, the plan has 3"):
            program.step(call)
        return True

    assert train(2, body) == [True, True]


def test_l4_an_error_on_one_rank_ends_the_others_and_names_it():
    def body(session: ui.Session) -> Any:
        program = session.compile(
            Linear([[0.0]]),
            objective=mean_gradient_objective,
            optimizer=ui.optim.SGD(lr=0.1),
        )
        if session.rank == 1:
            raise ValueError("bad sample 7")
        program.step((column([1.0]),))

    with pytest.raises(RanksFailedError) as caught:
        train(3, body)
    assert isinstance(caught.value.errors[1], ValueError)
    for rank in (0, 2):
        assert isinstance(caught.value.errors[rank], ui.PeerLostError)
        assert "rank 1" in str(caught.value.errors[rank])
        assert "bad sample 7" in str(caught.value.errors[rank])

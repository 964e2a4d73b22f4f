"""The evaluation law on an adapter: each sample once, in order, and no trace left."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import pytest

from unified_ipu.adapter import Capability, HostMetric, metrics, optim
from unified_ipu.plan import runs_whole_calls
from unified_ipu.testing import samples
from unified_ipu.testing.float_types import near
from unified_ipu.testing.on_devices import without_padding
from unified_ipu.testing.oracle import cross_entropy, outputs_of
from unified_ipu.testing.ranks import Rank, Ranks
from unified_ipu.testing.scenarios import Make, batch_plan, ids_of, make
from unified_ipu.testing.suite import AdapterSuite, holds, relative_error, requires

PADDED = {"batch": {"remainder": "pad"}}


def _total(outputs: Any, targets: Any) -> Tuple[float, float]:
    del targets
    return float(np.sum(outputs)), float(len(outputs))


TOTAL = HostMetric("total", _total)


def evaluate(
    rank: Rank,
    *,
    model: Make,
    loss: Make,
    data: Tuple[Any, ...],
    micro: int,
    pad: bool = False,
    gather: str = "all",
) -> Dict[str, Any]:
    """Evaluate and predict once, without an optimizer."""
    # With padding G must be filled by all replicas.
    plan = batch_plan(micro * rank.world.world_size, micro, **(PADDED if pad else {}))
    with rank.session(plan) as session:
        built = model.on(rank.subject)
        program = rank.compile(session, built, loss=loss.on(rank.subject))
        loader = session.loader(rank.arrays(*data), train=False)
        measured = {"accuracy": metrics.accuracy} if data[1].dtype.kind == "i" else {"total": TOTAL}
        return {
            "results": program.evaluate(loader, measured),
            "outputs": program.predict(loader, gather=gather),
            "dealt": [ids_of(micro_batch) for micro_batch in loader],
            "certificate": str(loader.certificate()),
        }


def train_around(rank: Rank, *, evaluates: bool) -> List[Any]:
    """Train two updates, with or without an evaluation before, between and after them."""
    x, y = samples.regression(12)
    weights, biases = samples.mlp_values()
    with rank.session(batch_plan(6, 2, data={"shuffle": True})) as session:
        model = rank.subject.mlp(weights, biases)
        program = rank.compile(
            session,
            model,
            loss=rank.subject.mean_squared_error(),
            optimizer=optim.Adam(lr=0.05),
        )
        train = session.loader(rank.arrays(x, y))
        held = session.loader(rank.arrays(x[:5], y[:5]), train=False)
        found: List[Any] = []
        for epoch in range(2):
            for call in train:
                if evaluates:
                    before = (train.epoch, train.position, program.update)
                    program.evaluate(held, {"total": TOTAL})
                    program.predict(held)
                    assert (train.epoch, train.position, program.update) == before
                record = program.step(call)
                found.append((epoch, record.loss, record.lr, record.update))
        found.append({name: value.tobytes() for name, value in program.weights().items()})
        return found


def measure_with_buffers(rank: Rank) -> Dict[str, Any]:
    """Train on other values on each rank, then evaluate rows that are all the same."""
    shifted = samples.column(0.0, 1.0, 2.0, 3.0) * (1.0 + rank.world.rank)
    with rank.session(batch_plan(4 * rank.world.world_size, 4)) as session:
        model = rank.subject.normalised()
        program = rank.compile(
            session,
            model,
            loss=rank.subject.product_loss(),
            optimizer=optim.SGD(lr=0.1),
        )
        program.step(rank.floats((shifted, samples.ones(4))))
        before = model.canonical(program.weights())
        data = rank.arrays(samples.ones(5), samples.ones(5))
        held = session.loader(data, train=False, micro_batch_size=1)
        loss = program.evaluate(held)["loss"]
        outputs = program.predict(held, gather="all")[:, 0].tolist()
        after = model.canonical(program.weights())
        return {"before": before, "after": after, "loss": loss, "outputs": outputs}


def measure_while_training(rank: Rank) -> List[Tuple[float, float]]:
    """Train one weight from 0 by -1 an update; its loss and output in between."""
    ones = rank.floats((samples.ones(1), samples.ones(1)))
    with rank.session(rows=1) as session:
        model = rank.subject.linear(samples.column(0.0))
        program = rank.compile(
            session, model, loss=rank.subject.product_loss(), optimizer=optim.SGD(lr=1.0)
        )
        held = session.loader(rank.arrays(samples.ones(1), samples.ones(1)), train=False)

        def measured() -> Tuple[float, float]:
            outputs = program.predict(held, gather="all")
            return program.evaluate(held)["loss"], float(outputs[0, 0])

        found = [measured()]
        for _ in range(2):
            program.step(ones)
            found.append(measured())
        program.load_weights(rank.floats(model.to_native({"weight": samples.column(5.0)})))
        return [*found, measured()]


def measure_all_rows(rank: Rank, *, pad: bool) -> Dict[str, float]:
    """Evaluate metrics that need every row at once."""
    data = rank.arrays(samples.column(*range(1, 8)), samples.ones(7))
    plan = batch_plan(2 * rank.world.world_size, 2, **(PADDED if pad else {}))
    with rank.session(plan) as session:
        model = rank.subject.linear(samples.column(1.0))
        loss = rank.subject.mean_squared_error()
        program = rank.compile(session, model, loss=loss)
        measured: Dict[str, Any] = {
            "moment": metrics.gathered(_moment),
            "rows": metrics.gathered(_rows),
        }
        return program.evaluate(session.loader(data, train=False), measured)


def _moment(outputs: Any, targets: Any) -> float:
    return float(np.arange(1, len(outputs) + 1) @ (outputs * targets)[:, 0])


def _rows(outputs: Any, targets: Any) -> float:
    return float(min(len(outputs), len(targets)))


def epoch_loss(rank: Rank) -> Dict[str, Any]:
    """Fit one epoch of two updates at rate 0, and evaluate the same samples."""
    data = rank.arrays(samples.column(9.0, 11.0, 9.0), samples.ones(3))
    # One number a micro-batch is this loss, so a device cannot be given a part of one.
    is_whole = rank.world.world_size == 1 and not runs_whole_calls(rank.target)
    with rank.session(batch_plan(2, 2 if is_whole else 1)) as session:
        model = rank.subject.linear(samples.column(1.0))
        program = rank.compile(
            session,
            model,
            loss=rank.subject.product_loss(),
            optimizer=optim.SGD(lr=1.0),
            schedule=nothing,
        )
        held = session.loader(data, train=False, micro_batch_size=2)
        summary = program.fit(session.loader(data), validation=held)
        return {"trained": summary.epochs[0].loss, "evaluated": summary.validation["loss"]}


def nothing(update: int) -> float:
    """A schedule that trains nothing."""
    del update
    return 0.0


def identity(size: int, **dtype: str) -> Make:
    """A linear model whose outputs are its inputs."""
    return make("linear", weight=np.eye(size), **dtype)


class EvaluationSuite(AdapterSuite):
    """L6 and L2.8, required of every adapter."""

    @holds("L6.6")
    @pytest.mark.case("O-S1")
    @pytest.mark.parametrize("pad", [False, True])
    @pytest.mark.parametrize("size", [1, 3, 4])
    def test_l6_1_each_sample_counts_once(self, ranks: Ranks, size: int, pad: bool) -> None:
        x = np.zeros((10, 4))
        x[:, 1] = 1.0
        classes = np.array([1, 1, 0, 2, 3, 0, 2, 3, 0, 2])  # only samples 0 and 1 are right
        loss, _, _ = cross_entropy()(x, classes)
        for result in ranks.run(
            evaluate,
            size,
            model=identity(4),
            loss=make("cross_entropy"),
            data=(x, classes),
            micro=3,
            pad=pad,
        ):
            assert result["results"]["accuracy"] == near(ranks, 0.2, rel=1e-14)
            assert result["results"]["loss"] == near(ranks, loss / 10, rel=1e-13)
            assert len(result["outputs"]) == 10
            assert result["certificate"].startswith("10 of 10 samples, each once")

    def test_l6_3_the_loss_is_divided_by_all_that_counts(self, ranks: Ranks) -> None:
        x, classes = samples.classification(17)
        weights, biases = samples.mlp_values((3, 4, 3))
        loss = make(
            "cross_entropy",
            class_weights=list(samples.CLASS_WEIGHTS),
            ignore_index=samples.IGNORED,
        )
        outputs = outputs_of(samples.canonical_mlp((3, 4, 3)), x)
        total, weight, _ = cross_entropy(samples.CLASS_WEIGHTS, samples.IGNORED)(outputs, classes)
        for size, micro in ((1, 17), (1, 4), (2, 3), (3, 1)):
            for result in ranks.run(
                evaluate,
                size,
                model=make("mlp", weights=weights, biases=biases),
                loss=loss,
                data=(x, classes),
                micro=micro,
            ):
                assert result["results"]["loss"] == near(ranks, total / weight, rel=1e-12)
                assert result["outputs"] == near(ranks, outputs, rel=1e-12, size=1.0)

    @holds("L6.6")
    @pytest.mark.case("O-S4")
    @pytest.mark.parametrize("pad", [False, True])
    def test_l6_4_predictions_come_in_the_order_of_the_samples(
        self, ranks: Ranks, pad: bool
    ) -> None:
        data = (samples.column(*range(7)), samples.ones(7))

        def outputs(gather: str) -> List[Optional[List[float]]]:
            results = ranks.run(
                evaluate,
                3,
                model=identity(1),
                loss=make("mean_squared_error"),
                data=data,
                micro=2,
                pad=pad,
                gather=gather,
            )
            found = [result["outputs"] for result in results]
            return [None if one is None else one[:, 0].tolist() for one in found]

        everything = [float(sample) for sample in range(7)]
        assert outputs("first") == [everything, None, None]
        assert outputs("all") == [everything] * 3
        assert outputs("none") == [[0.0, 1.0, 6.0], [2.0, 3.0], [4.0, 5.0]]

    def test_l2_8_micro_batches_are_dealt_in_turn(self, ranks: Ranks) -> None:
        results = ranks.run(
            evaluate,
            3,
            model=identity(1),
            loss=make("mean_squared_error"),
            data=(samples.column(*range(7)), samples.ones(7)),
            micro=2,
        )
        dealt = [[without_padding(ids) for ids in result["dealt"]] for result in results]
        assert dealt == [[[0, 1], [6]], [[2, 3]], [[4, 5]]]

    @holds("L6.5")
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_l6_2_ranks_without_rows_get_the_same_results(self, ranks: Ranks, dtype: str) -> None:
        results = ranks.run(
            evaluate,
            3,
            model=identity(2, dtype=dtype),
            loss=make("mean_squared_error"),
            data=(np.array([[2.0, 4.0]], dtype), np.zeros((1, 2), dtype)),
            micro=2,
        )
        for result in results:
            assert result["results"] == {"loss": 10.0, "total": 6.0}
            assert result["outputs"].tolist() == [[2.0, 4.0]]
            assert result["outputs"].dtype == np.dtype(dtype)

    @pytest.mark.parametrize("size", [1, 2])
    def test_evaluation_and_prediction_use_the_newest_weights(
        self, ranks: Ranks, size: int
    ) -> None:
        for found in ranks.run(measure_while_training, size):
            assert found == [(0.0, 0.0), (-1.0, -1.0), (-2.0, -2.0), (5.0, 5.0)]

    @pytest.mark.case("O-M3")
    @pytest.mark.parametrize("size", [1, 2])
    def test_l6_3_the_loss_of_an_epoch_weighs_batches_by_their_rows(
        self, ranks: Ranks, size: int
    ) -> None:
        for result in ranks.run(epoch_loss, size):
            assert result["trained"] == near(ranks, 29 / 3, rel=1e-13)
            assert result["evaluated"] == near(ranks, 29 / 3, rel=1e-13)

    @pytest.mark.parametrize("pad", [False, True])
    @pytest.mark.parametrize("size", [1, 3])
    def test_l6_3_a_gathered_metric_gets_all_rows_in_the_order_of_the_samples(
        self, ranks: Ranks, size: int, pad: bool
    ) -> None:
        for result in ranks.run(measure_all_rows, size, pad=pad):
            # Outputs 1 to 7 by position, targets 1: 1 * 1 + 2 * 2 + ... + 7 * 7, and 7 rows.
            assert result == {"loss": pytest.approx(13.0), "moment": 140.0, "rows": 7.0}

    @requires(Capability.BUFFERS)
    @pytest.mark.parametrize("size", [1, 2])
    def test_l6_7_buffers_are_the_same_for_every_sample_and_stay_as_they_were(
        self, ranks: Ranks, size: int
    ) -> None:
        results = ranks.run(measure_with_buffers, size)
        for result in results:
            assert relative_error(result["after"], result["before"]) == 0.0
            assert result["outputs"] == [result["outputs"][0]] * 5
            assert result["loss"] == near(ranks, result["outputs"][0], rel=1e-13)
            assert result["outputs"] == results[0]["outputs"]
        if size > 1:
            means = [float(result["before"]["mean"][0]) for result in results]
            assert means[0] != means[1], "ranks keep the statistics of their own micro-batches"

    @pytest.mark.parametrize("size", [1, 2])
    def test_l6_7_evaluation_changes_nothing(self, ranks: Ranks, size: int) -> None:
        without = ranks.run(train_around, size, evaluates=False)
        assert ranks.run(train_around, size, evaluates=True) == without

"""The data law on an adapter: which samples are behind which update, seen by the model itself."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import pytest

from unified_ipu.adapter import optim
from unified_ipu.testing import samples
from unified_ipu.testing.float_types import near
from unified_ipu.testing.on_devices import (
    assert_norms,
    certified,
    is_device,
    reduction_of,
    without_padding,
)
from unified_ipu.testing.ranks import Ranks
from unified_ipu.testing.scenarios import (
    Trained,
    Training,
    batch_plan,
    caught,
    dealt_by_update,
    halving,
    make,
    train,
)
from unified_ipu.testing.suite import AdapterSuite, all_raise, holds

# N samples, G, B, replicas, D updates a call.
EPOCHS = [
    (12, 4, 2, 1, 1),
    (13, 4, 3, 2, 1),
    (7, 5, 1, 3, 2),
    (3, 4, 2, 2, 1),
    (21, 6, 4, 3, 3),
    (10, 2, 2, 2, 4),
]


def counting_run(size: int, plan: Any, *, epochs: int = 1, loss: str = "mean") -> Training:
    """Train one weight a sample from 0: an update moves it by -1/G for each time it was seen."""
    return Training(
        make("linear", weight=np.zeros((size, 1))),
        optim.SGD(lr=1.0),
        loss=make("product_loss", reduction=loss),
        data=(np.eye(size), samples.ones(size)),
        plan=plan,
        epochs=epochs,
        options={"loss_reduction": loss},
    )


def shuffled(global_batch_size: int, micro_batch_size: int, **tables: Any) -> Any:
    """A plan in the keyed order."""
    return batch_plan(global_batch_size, micro_batch_size, data={"shuffle": True}, **tables)


def ids_by_update(ranks: Sequence[Trained]) -> List[List[int]]:
    """Ids of real samples of each update over all ranks, in the order of their positions."""
    return [
        without_padding([one for dealt in update for one in dealt.ids])
        for update in dealt_by_update(ranks)
    ]


class DataLawSuite(AdapterSuite):
    """L2, required of every adapter."""

    @holds("L2.3", "L2.6", "L2.12", "L2.14")
    @pytest.mark.parametrize(("size", "total", "micro", "replicas", "per_call"), EPOCHS)
    def test_l2_1_the_model_sees_every_sample_once_an_epoch(
        self, ranks: Ranks, size: int, total: int, micro: int, replicas: int, per_call: int
    ) -> None:
        if is_device(ranks):
            total += -total % replicas
        plan = shuffled(
            total, micro, batch={"updates_per_call": per_call}, update={"reduction": "sum"}
        )
        results = ranks.run(
            train, replicas, run=counting_run(size, plan, epochs=2, loss=reduction_of(ranks))
        )
        num_updates = -(-size // total)
        for trained in results:
            assert trained.weights["weight"][:, 0].tolist() == [-2.0] * size
            assert trained.certificates == [certified(ranks, size, total)] * 2
            calls = [per_call] * (num_updates // per_call)
            calls += [num_updates % per_call] if num_updates % per_call else []
            assert trained.calls == 2 * calls, "L2.12: a call never spans two epochs"
            assert sum(record.samples for record in trained.records) == 2 * size
        updates = ids_by_update(results)
        assert [len(update) for update in updates[:-1]] == (
            [min(total, size - start) for start in range(0, size, total)] * 2
        )[:-1]
        for epoch in (updates[:num_updates], updates[num_updates:]):
            assert sorted(one for update in epoch for one in update) == list(range(size))

    @holds("L2.6")
    def test_l2_4_the_micro_batches_of_an_uneven_world(self, ranks: Ranks) -> None:
        results = ranks.run(train, 3, run=counting_run(64, batch_plan(64, 16)))
        dealt = [
            [(one.index, one.ids[0], len(one.ids)) for one in trained.micro_batches[0]]
            for trained in results
        ]
        assert dealt == [[(0, 0, 16), (3, 48, 16)], [(1, 16, 16)], [(2, 32, 16)]]

    def test_l2_2_the_order_is_the_same_in_every_world(self, ranks: Ranks) -> None:
        loss = reduction_of(ranks)
        alone = ids_by_update(ranks.run(train, 1, run=counting_run(23, shuffled(6, 2), loss=loss)))
        for replicas, micro in ((1, 6), (2, 2), (3, 1), (2, 5)):
            run = counting_run(23, shuffled(6, micro), loss=loss)
            assert ids_by_update(ranks.run(train, replicas, run=run)) == alone
        run = counting_run(23, shuffled(6, 2), loss=loss)
        micro_batches = dealt_by_update(ranks.run(train, 1, run=run))
        results = ranks.run(train, 3, run=run)
        assert dealt_by_update(results) == micro_batches, "what keys the masks must not move"

    @pytest.mark.case("O-S7")
    def test_l2_2_epochs_differ_and_a_new_run_repeats_them(self, ranks: Ranks) -> None:
        run = counting_run(10, shuffled(10, 5), epochs=2)
        first, second = ids_by_update(ranks.run(train, 2, run=run))
        assert first != second
        assert first != list(range(10))
        assert sorted(first) == sorted(second) == list(range(10))
        assert ids_by_update(ranks.run(train, 2, run=run)) == [first, second]
        other = counting_run(10, shuffled(10, 5, seed=1))
        assert ids_by_update(ranks.run(train, 2, run=other)) != [first]

    @holds("L2.14")
    def test_l2_9_a_dropped_remainder_is_counted(self, ranks: Ranks) -> None:
        plan = batch_plan(4, 2, batch={"remainder": "drop"}, update={"reduction": "sum"})
        for trained in ranks.run(train, 2, run=counting_run(10, plan)):
            assert trained.weights["weight"][:, 0].tolist() == [-1.0] * 8 + [0.0] * 2
            assert trained.certificates == ["8 of 10 samples, each once, 2 dropped"]
            assert len(trained.records) == 2

    @pytest.mark.parametrize("size", [1, 2])
    def test_l2_9_padding_is_counted_and_does_not_count(self, ranks: Ranks, size: int) -> None:
        plan = batch_plan(4, 2, batch={"remainder": "pad"})
        results = ranks.run(train, size, run=counting_run(9, plan, loss="none"))
        for trained in results:
            weights = trained.weights["weight"][:, 0]
            assert weights == near(ranks, [-0.25] * 8 + [-1.0], rel=1e-13)
            assert trained.certificates == ["9 of 9 samples, each once, 3 rows of padding"]
            assert [record.weight for record in trained.records] == [4.0, 4.0, 1.0]
            assert [record.samples for record in trained.records] == [4, 4, 1]
        last = [one for dealt in dealt_by_update(results)[-1] for one in dealt.ids]
        assert last == [8, -1, -1, -1]

    def test_l2_9_padding_of_a_known_loss_does_not_count(self, ranks: Ranks) -> None:
        x, y = samples.column(1, 2, 3), np.zeros((3, 1))
        run = Training(
            make("linear", weight=samples.column(1.0)),
            optim.SGD(lr=0.1),
            loss=make("mean_squared_error"),
            data=(x, y),
            plan=batch_plan(4, 2, batch={"remainder": "pad"}),
        )
        for size in (1, 2):
            for trained in ranks.run(train, size, run=run):
                assert trained.records[0].weight == 3.0
                assert_norms(ranks, [trained.records[0].grad_norm], [28 / 3])

    @pytest.mark.case("O-I2")
    def test_l2_9_dropping_everything_is_an_error(self, ranks: Ranks) -> None:
        run = counting_run(3, batch_plan(4, 2, batch={"remainder": "drop"}))
        for message in all_raise(ranks, caught, 2, "ConfigError", run=run):
            assert "3 samples" in message
            assert "global batch of 4" in message

    def test_l5_1_samples_weights_and_rates_are_equal_in_every_world(self, ranks: Ranks) -> None:
        x, classes = samples.classification(19)
        total = 6 if is_device(ranks) else 5

        def facts(replicas: int, micro: int) -> Any:
            update = {"warmup_updates": 3, "lr_scaling": "sqrt", "base_global_batch_size": 3}
            run = Training(
                make("linear", weight=np.zeros((3, 3))),
                optim.SGD(lr=0.3),
                loss=make(
                    "cross_entropy",
                    class_weights=list(samples.CLASS_WEIGHTS),
                    ignore_index=samples.IGNORED,
                ),
                data=(x, classes),
                plan=shuffled(total, micro, update=update, batch={"updates_per_call": 2}),
                epochs=2,
                options={"schedule": halving},
            )
            found = [
                [(one.samples, one.weight, one.lr, one.updates) for one in trained.records]
                for trained in ranks.run(train, replicas, run=run)
            ]
            assert all(theirs == found[0] for theirs in found)
            return found[0]

        alone = facts(1, 5)
        assert sum(one[0] for one in alone) == 38
        for replicas, micro in ((1, 2), (2, 2), (3, 1)):
            assert facts(replicas, micro) == alone

    def test_l2_10_calls_and_updates_are_counted_right(self, ranks: Ranks) -> None:
        plan = batch_plan(1, 1, batch={"updates_per_call": 20}, update={"reduction": "sum"})
        trained = ranks.run(train, 1, run=counting_run(50, plan))[0]
        assert trained.calls == [20, 20, 10]
        assert [record.update for record in trained.records] == [19, 39, 49]
        assert trained.happened == 50

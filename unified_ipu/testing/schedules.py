"""Learning rates over updates: callables, warm-up, scaling, the framework's own schedulers."""

from __future__ import annotations

import math
from typing import Any, Dict, List

import pytest

from unified_ipu.adapter import Capability, optim
from unified_ipu.testing import samples
from unified_ipu.testing.ranks import Ranks
from unified_ipu.testing.scenarios import Training, batch_plan, caught, halving, make, train
from unified_ipu.testing.suite import AdapterSuite, all_raise, holds, relative_error, requires
from unified_ipu.testing.update_oracle import mlp_oracle, mlp_run, train_with_native_optimizer


def ones_run(rows: int, plan: Any, optimizer: Any = None, **options: Any) -> Training:
    """Train one weight from 0 with a gradient of 1 in every update."""
    return Training(
        make("linear", weight=samples.column(0.0)),
        optimizer or optim.SGD(lr=1.0),
        loss=make("product_loss"),
        data=(samples.ones(rows), samples.ones(rows)),
        plan=plan,
        options=options,
    )


class Broken:
    """A schedule that gives no factor from the second update on."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self, update: int) -> Any:
        """The factor."""
        return self._value if update == 1 else 1.0


class ScheduleSuite(AdapterSuite):
    """L2.11, required of every adapter; the framework's own schedulers where they are declared."""

    @pytest.mark.case("O-G8")
    @pytest.mark.parametrize("size", [1, 2])
    def test_l2_11_the_schedule_moves_once_an_update(self, ranks: Ranks, size: int) -> None:
        run = ones_run(16, batch_plan(4, 1), schedule=halving)
        for trained in ranks.run(train, size, run=run):
            assert [record.lr for record in trained.records] == [1.0, 0.5, 0.25, 0.125]
            assert float(trained.weights["weight"][0, 0]) == -1.875

    def test_l2_11_the_learning_rate_holds_for_a_call(self, ranks: Ranks) -> None:
        plan = batch_plan(2, 1, batch={"updates_per_call": 2})
        for trained in ranks.run(train, 2, run=ones_run(10, plan, schedule=halving)):
            assert trained.calls == [2, 2, 1]
            assert [record.lr for record in trained.records] == [1.0, 0.25, 0.0625]
            assert float(trained.weights["weight"][0, 0]) == -2.5625

    def test_l2_11_warm_up_rises_to_the_full_rate(self, ranks: Ranks) -> None:
        plan = batch_plan(1, 1, update={"warmup_updates": 4})
        for trained in ranks.run(train, 1, run=ones_run(6, plan)):
            rates = [record.lr for record in trained.records]
            assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
            assert float(trained.weights["weight"][0, 0]) == -4.5

    @pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
    def test_l2_11_the_rate_is_scaled_with_the_batch(
        self, ranks: Ranks, scaling: str, factor: float
    ) -> None:
        update: Dict[str, Any] = {"lr_scaling": scaling}
        if scaling != "none":
            update["base_global_batch_size"] = 2
        for trained in ranks.run(train, 2, run=ones_run(8, batch_plan(8, 2, update=update))):
            assert trained.records[0].lr == factor
            assert float(trained.weights["weight"][0, 0]) == -factor

    def test_l2_11_scaling_warm_up_and_schedule_multiply(self, ranks: Ranks) -> None:
        update = {"lr_scaling": "linear", "base_global_batch_size": 1, "warmup_updates": 2}
        run = ones_run(6, batch_plan(2, 1, update=update), schedule=halving)
        for trained in ranks.run(train, 2, run=run):
            # 2 x (1/2, 1, 1) x (1, 1/2, 1/4)
            assert [record.lr for record in trained.records] == [1.0, 1.0, 0.5]

    def test_l1_8_the_rate_stays_outside_the_velocity(self, ranks: Ranks) -> None:
        run = ones_run(2, batch_plan(1, 1), optim.SGD(lr=1.0, momentum=0.5), schedule=halving)
        trained = ranks.run(train, 1, run=run)[0]
        # Velocities 1 and 1.5, rates 1 and 0.5; with the rate inside it would end at -2.
        assert float(trained.weights["weight"][0, 0]) == -1.75

    @holds("L2.11")
    @pytest.mark.parametrize(
        "optimizer",
        [optim.SGD(lr=0.1, momentum=0.9), optim.Adam(lr=0.02), optim.AdamW(lr=0.02)],
        ids=["momentum", "adam", "adamw"],
    )
    def test_l5_3_fifty_updates_of_a_changing_rate_equal_the_oracle(
        self, ranks: Ranks, optimizer: Any
    ) -> None:
        expected = mlp_oracle(optimizer, factor=saw).parameters
        run = mlp_run(optimizer, 3, options={"schedule": saw})
        for trained in ranks.run(train, 2, run=run):
            assert relative_error(trained.weights, expected) < self.tolerance_of(ranks)

    def test_l1_6_a_rate_of_0_is_an_update_that_happened(self, ranks: Ranks) -> None:
        for trained in ranks.run(train, 2, run=ones_run(4, batch_plan(2, 1), schedule=nothing)):
            assert trained.happened == 2
            assert float(trained.weights["weight"][0, 0]) == 0.0

    @pytest.mark.parametrize("value", [-1.0, math.nan, "fast", None])
    def test_what_is_no_factor_is_refused_with_its_update(self, ranks: Ranks, value: Any) -> None:
        run = ones_run(4, batch_plan(2, 1), schedule=Broken(value))
        for message in all_raise(ranks, caught, 2, "ConfigError", run=run):
            assert "schedule(1)" in message
            assert repr(value) in message

    @requires(Capability.NATIVE_OPTIMIZERS, Capability.NATIVE_SCHEDULES)
    @pytest.mark.parametrize(
        ("per_call", "rates"), [(1, [1.0, 0.5, 0.25, 0.125, 0.0625]), (2, [1.0, 0.25, 0.0625])]
    )
    @pytest.mark.case("O-G8")
    def test_l2_11_a_native_schedule_steps_once_an_update(
        self, ranks: Ranks, per_call: int, rates: List[float]
    ) -> None:
        plan = batch_plan(4, 1, batch={"updates_per_call": per_call})
        for trained in ranks.run(
            train_with_native_optimizer,
            2,
            run=Training(
                make("linear", weight=samples.column(0.0)),
                loss=make("product_loss"),
                data=(samples.ones(20), samples.ones(20)),
                plan=plan,
            ),
            settings=optim.SGD(lr=1.0),
            factor=0.5,
        ):
            assert [record.lr for record in trained.records] == rates


def saw(update: int) -> float:
    """A factor that rises and falls."""
    return 0.25 * (1 + update % 4)


def nothing(update: int) -> float:
    """A schedule that trains nothing."""
    del update
    return 0.0

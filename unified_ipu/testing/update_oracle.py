"""Training in any world comes to what the float64 oracle does, with every optimizer."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import numpy as np
import pytest

from unified_ipu.adapter import optim
from unified_ipu.testing import samples
from unified_ipu.testing.float_types import FLOAT32_FIFTY_UPDATES, near
from unified_ipu.testing.on_devices import assert_norms, is_device
from unified_ipu.testing.oracle import Oracle, cross_entropy, squared_error
from unified_ipu.testing.ranks import Rank, Ranks
from unified_ipu.testing.scenarios import Trained, Training, batch_plan, halving, make, train
from unified_ipu.testing.subject import Model
from unified_ipu.testing.suite import AdapterSuite, holds, relative_error

OPTIMIZERS = [
    optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    optim.SGD(lr=0.1, momentum=0.8, dampening=0.3),
    optim.Adam(lr=0.01, weight_decay=0.02),
    optim.AdamW(lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
]
NAMES = ["nesterov", "dampened", "adam", "adamw"]


class UpdateOracleSuite(AdapterSuite):
    """L5.2 and L5.3: training in any world comes to what the float64 oracle does."""

    @holds("L4.8")
    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
    def test_l5_3_fifty_updates_equal_the_oracle_in_every_world(
        self, ranks: Ranks, optimizer: Any
    ) -> None:
        oracle = mlp_oracle(optimizer)
        per_call = updates_of_a_call(ranks)
        expected = np.reshape(oracle.losses, (-1, per_call)).mean(axis=1).tolist()
        # One rank: see the suite of optimizers. Static shapes do not part 8 samples in three.
        for size, micro in ((2, 3), (4, 4) if is_device(ranks) else (3, 4)):
            run = mlp_run(optimizer, micro, updates_per_call=per_call)
            results = ranks.run(train, size, run=run)
            for trained in results:
                assert relative_error(trained.weights, oracle.parameters) < self.tolerance_of(ranks)
                losses = [record.loss for record in trained.records]
                assert losses == near(ranks, expected, rel=1e-11, float32=FLOAT32_FIFTY_UPDATES)
            assert_same_bits([trained.weights for trained in results])

    @holds("L1.8", "L2.11")
    def test_l5_3_clipping_warm_up_and_scaling_equal_the_oracle(self, ranks: Ranks) -> None:
        update = {
            "clip_norm": 0.2,
            "warmup_updates": 4,
            "lr_scaling": "linear",
            "base_global_batch_size": 4,
        }
        # Devices may clip the velocity of momentum, which is something else.
        plain = optim.SGD(lr=0.1, weight_decay=0.01)
        optimizer = plain if is_device(ranks) else OPTIMIZERS[0]
        oracle = mlp_oracle(
            optimizer,
            clip_norm=0.2,
            factor=lambda u: 2.0 * min(1.0, (u + 1) / 4) * halving(u // 20),
        )
        options = {"schedule": halving_every_20}
        for size, micro in ((1, 8), (4 if is_device(ranks) else 3, 2)):
            run = mlp_run(optimizer, micro, update=update, options=options)
            for trained in ranks.run(train, size, run=run):
                assert relative_error(trained.weights, oracle.parameters) < self.tolerance_of(ranks)
                norms = [record.grad_norm for record in trained.records]
                assert_norms(ranks, norms, oracle.norms, rel=1e-11)

    @holds("L5.1")
    def test_l1_2_class_weights_and_ignored_targets_are_the_denominator(self, ranks: Ranks) -> None:
        x, classes = samples.classification(33)
        weights, biases = samples.mlp_values((3, 4, 3))
        optimizer = optim.SGD(lr=0.2, momentum=0.5)
        oracle = Oracle(
            samples.canonical_mlp((3, 4, 3)),
            cross_entropy(samples.CLASS_WEIGHTS, samples.IGNORED),
            optimizer,
        )
        for start in range(0, 33, 8):
            oracle.update(x[start : start + 8], classes[start : start + 8])
        loss = make(
            "cross_entropy",
            class_weights=list(samples.CLASS_WEIGHTS),
            ignore_index=samples.IGNORED,
        )
        for size, micro in ((1, 8), (1, 3), (2, 3), (4 if is_device(ranks) else 3, 1)):
            run = Training(
                make("mlp", weights=weights, biases=biases),
                optimizer,
                loss=loss,
                data=(x, classes),
                plan=batch_plan(8, micro),
            )
            for trained in ranks.run(train, size, run=run):
                assert [record.weight for record in trained.records] == oracle.weights
                assert relative_error(trained.weights, oracle.parameters) < self.tolerance_of(ranks)

    def test_l1_3_a_summed_gradient_is_not_divided(self, ranks: Ranks) -> None:
        # One column, since an element or a row may be the unit of a framework's own loss.
        sizes, optimizer = (3, 4, 1), optim.SGD(lr=0.003)
        oracle = mlp_oracle(optimizer, sizes=sizes, reduction="sum")
        update, per_call = {"reduction": "sum"}, updates_of_a_call(ranks)
        run = mlp_run(optimizer, 3, sizes=sizes, update=update, updates_per_call=per_call)
        for trained in ranks.run(train, 2, run=run):
            assert relative_error(trained.weights, oracle.parameters) < self.tolerance_of(ranks)

    @holds("L5.3")
    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=NAMES)
    def test_l5_2_float32_is_equal_to_rounding(self, ranks: Ranks, optimizer: Any) -> None:
        before = samples.canonical_mlp()
        one, fifty = mlp_oracle(optimizer, updates=1), mlp_oracle(optimizer)
        for size in (1, 2):
            run = mlp_run(optimizer, 3, dtype="float32")
            for trained in ranks.run(train, size, run=run):
                assert relative_error(trained.weights, fifty.parameters) < self.tolerance_float32
                for name, start in before.items():
                    start32 = start.astype(np.float32).astype(np.float64)
                    change = {name: trained.trace[0][name] - start32}
                    expected = {name: one.parameters[name] - start}
                    assert relative_error(change, expected) < self.tolerance_float32_update


def halving_every_20(update: int) -> float:
    """A schedule of steps."""
    return halving(update // 20)


def mlp_run(
    optimizer: Any,
    micro_batch_size: int,
    *,
    sizes: Sequence[int] = (3, 4, 2),
    dtype: Optional[str] = None,
    update: Optional[Dict[str, Any]] = None,
    options: Optional[Dict[str, Any]] = None,
    updates_per_call: int = 1,
) -> Training:
    """50 updates of the small MLP: 5 epochs of 80 samples in their order, 8 an update."""
    weights, biases = samples.mlp_values(sizes)
    x, y = samples.regression(80)
    y = y[:, : sizes[-1]]
    return Training(
        make("mlp", weights=weights, biases=biases, **({} if dtype is None else {"dtype": dtype})),
        optimizer,
        loss=make("mean_squared_error"),
        data=(x, y) if dtype is None else (x.astype(dtype), y.astype(dtype)),
        epochs=5,
        plan=batch_plan(
            8, micro_batch_size, update=update or {}, batch={"updates_per_call": updates_per_call}
        ),
        options=options or {},
    )


def updates_of_a_call(ranks: Ranks) -> int:
    """How many of the 50 updates are a call: on devices all of an epoch, as there they may be."""
    return 10 if is_device(ranks) else 1


def mlp_oracle(
    optimizer: Any, *, updates: int = 50, sizes: Sequence[int] = (3, 4, 2), **settings: Any
) -> Oracle:
    """The oracle after the updates of ``mlp_run``."""
    oracle = Oracle(samples.canonical_mlp(sizes), squared_error, optimizer, **settings)
    x, y = samples.regression(80)
    y = y[:, : sizes[-1]]
    for update in range(updates):
        start = update * 8 % 80
        oracle.update(x[start : start + 8], y[start : start + 8])
    return oracle


def assert_same_bits(weights: Sequence[Dict[str, Any]]) -> None:
    """L4.8: every rank ends with the same bits."""
    for theirs in weights[1:]:
        for name, value in theirs.items():
            assert value.tobytes() == weights[0][name].tobytes(), f"{name} differs between ranks"


def train_with_native_optimizer(
    rank: Rank,
    *,
    run: Training,
    settings: Any,
    rates: Optional[Dict[str, float]] = None,
    factor: Optional[float] = None,
) -> Trained:
    """Train with the framework's own optimizer, and its own schedule if there is a factor."""

    def options_of(model: Model) -> Dict[str, Any]:
        given = rates or dict.fromkeys(model.names, settings.lr)
        optimizer = rank.subject.native_optimizer(model, settings, given)
        options = {**run.options, "optimizer": optimizer}
        if factor is not None:
            options["schedule"] = rank.subject.native_schedule(optimizer, factor)
        return options

    return train(rank, run=run, options_of=options_of)

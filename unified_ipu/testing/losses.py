"""The losses of ``ui.losses``, which every adapter carries out with the same formulas."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import pytest

from unified_ipu.adapter import losses, optim
from unified_ipu.testing import oracle, samples
from unified_ipu.testing.float_types import FLOAT32_FIFTY_UPDATES, near
from unified_ipu.testing.ranks import Ranks
from unified_ipu.testing.scenarios import Training, batch_plan, caught, make, train
from unified_ipu.testing.suite import AdapterSuite, all_raise, holds, relative_error

ROWS, UPDATE = 22, 8  # the last update is short
DELTA = 0.5

LOSSES: Dict[str, Tuple[Any, oracle.Loss]] = {
    "mean_squared_error": (losses.mean_squared_error(), oracle.squared_error),
    "mean_absolute_error": (losses.mean_absolute_error(), oracle.absolute_error),
    "huber": (losses.huber(delta=DELTA), oracle.huber(DELTA)),
    "sigmoid_cross_entropy": (losses.sigmoid_cross_entropy(), oracle.sigmoid_cross_entropy),
    "softmax_cross_entropy": (
        losses.softmax_cross_entropy(
            class_weights=samples.CLASS_WEIGHTS, ignore_index=samples.IGNORED
        ),
        oracle.cross_entropy(samples.CLASS_WEIGHTS, samples.IGNORED),
    ),
    "negative_log_likelihood": (
        losses.negative_log_likelihood(
            class_weights=samples.CLASS_WEIGHTS, ignore_index=samples.IGNORED
        ),
        oracle.negative_log_likelihood(samples.CLASS_WEIGHTS, samples.IGNORED),
    ),
}
"""By name the value, and its oracle."""


def data_of(kind: str) -> Tuple[Any, Any]:
    """Inputs and targets that go with a loss."""
    if kind in {"softmax_cross_entropy", "negative_log_likelihood"}:
        return samples.classification(ROWS)
    x, y = samples.regression(ROWS)
    return x, (y > 0.0).astype(np.float64) if kind == "sigmoid_cross_entropy" else y


def loss_run(kind: str, loss: Any, micro: int, **plan: Any) -> Training:
    """Train the small MLP for an epoch of three updates."""
    x, y = data_of(kind)
    weights, biases = samples.mlp_values((3, 4, 2 if y.ndim > 1 else 3))
    return Training(
        make("mlp", weights=weights, biases=biases),
        optim.SGD(lr=0.2, momentum=0.5),
        data=(x, y),
        plan=batch_plan(UPDATE, micro, **plan),
        options={"loss": loss},
    )


def loss_oracle(kind: str) -> oracle.Oracle:
    """What it must come to."""
    x, y = data_of(kind)
    start = samples.canonical_mlp((3, 4, 2 if y.ndim > 1 else 3))
    found = oracle.Oracle(start, LOSSES[kind][1], optim.SGD(lr=0.2, momentum=0.5))
    for row in range(0, ROWS, UPDATE):
        found.update(x[row : row + UPDATE], y[row : row + UPDATE])
    return found


class LossSuite(AdapterSuite):
    """L1.2 and L5.3 for the losses of ``ui.losses``, required of every adapter."""

    @holds("L5.1")
    @pytest.mark.parametrize("kind", sorted(LOSSES))
    def test_l1_2_each_loss_of_ui_losses_equals_the_oracle_in_every_world(
        self, ranks: Ranks, kind: str
    ) -> None:
        expected = loss_oracle(kind)
        for size, micro in ((1, 8), (2, 3)):
            for trained in ranks.run(train, size, run=loss_run(kind, LOSSES[kind][0], micro)):
                assert relative_error(trained.weights, expected.parameters) < self.tolerance_of(
                    ranks
                )
                assert [record.weight for record in trained.records] == expected.weights
                values = [record.loss for record in trained.records]
                assert values == near(
                    ranks, expected.losses, rel=1e-11, float32=FLOAT32_FIFTY_UPDATES
                )

    @pytest.mark.parametrize("reduction", ["sum", "none"])
    def test_l1_2_the_reduction_of_ui_losses_does_not_show(
        self, ranks: Ranks, reduction: str
    ) -> None:
        expected = loss_oracle("softmax_cross_entropy")
        loss = losses.softmax_cross_entropy(
            class_weights=samples.CLASS_WEIGHTS, ignore_index=samples.IGNORED, reduction=reduction
        )
        run = loss_run("softmax_cross_entropy", loss, 3)
        for trained in ranks.run(train, 2, run=run):
            assert relative_error(trained.weights, expected.parameters) < self.tolerance_of(ranks)
            assert [record.weight for record in trained.records] == expected.weights

    @pytest.mark.parametrize("kind", ["huber", "softmax_cross_entropy"])
    def test_l2_9_padding_of_ui_losses_does_not_count(self, ranks: Ranks, kind: str) -> None:
        expected = loss_oracle(kind)
        run = loss_run(kind, LOSSES[kind][0], 4, batch={"remainder": "pad"})
        for trained in ranks.run(train, 2, run=run):
            assert relative_error(trained.weights, expected.parameters) < self.tolerance_of(ranks)
            assert [record.weight for record in trained.records] == expected.weights

    def test_a_loss_of_ui_losses_may_be_passed_uncalled(self, ranks: Ranks) -> None:
        kind = "mean_squared_error"
        run = loss_run(kind, losses.mean_squared_error, 8)
        trained = ranks.run(train, run=run)[0]
        error = relative_error(trained.weights, loss_oracle(kind).parameters)
        assert error < self.tolerance_of(ranks)

    def test_an_output_that_is_not_there_is_refused_by_name(self, ranks: Ranks) -> None:
        run = loss_run("huber", losses.huber(output="mask"), 8)
        (message,) = all_raise(ranks, caught, 1, "ConfigError", run=run)
        assert "'mask'" in message

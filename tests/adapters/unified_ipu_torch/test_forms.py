"""The ways to say what is trained: loss=, loss=None, objective=; and the trees batches may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu.adapter import Loss, optim
from unified_ipu.errors import ConfigError, DataError

X = np.arange(6.0).reshape(3, 2)
Y = np.ones((3, 1))
BAD_METRICS: Any = {"m": 1.0}


class Model(nn.Module):
    """Takes one or two inputs, answers in the form it was asked for."""

    def __init__(self, form="outputs"):
        super().__init__()
        self.linear = nn.Linear(2, 1, bias=False).double()
        nn.init.constant_(self.linear.weight, 0.5)
        self.form = form

    def forward(self, x, y=None):
        outputs = self.linear(x)
        if self.form == "outputs":
            return outputs
        loss = ((outputs - (0.0 if y is None else y)) ** 2).mean()
        if self.form == "scalar":
            return loss
        if self.form == "pair":
            return loss, outputs
        return {"loss": loss, "outputs": outputs}


def tally(replica, batch):
    replica.begin_update()
    replica.forward_backward(batch, scale=1.0, seed=0, ready=print)
    return replica.finish_update()


EXPECTED = float((((X @ [[0.5], [0.5]]) - Y) ** 2).mean())


@pytest.mark.parametrize("form", ["scalar", "pair", "dict"])
def test_a_model_may_return_its_loss(build, micro, form):
    replica = build(Model(form), optimizer=optim.SGD(0.1))
    found = tally(replica, micro(X, Y))
    assert found.weight == 3.0
    assert found.loss_sum == pytest.approx(3 * EXPECTED)
    assert replica.counts_samples


def test_a_model_may_return_something_with_a_loss(build, micro):
    class Result:
        def __init__(self, loss):
            self.loss = loss

    class Wrapped(Model):
        def forward(self, x, y=None):
            return Result(super().forward(x, y)["loss"])

    found = tally(build(Wrapped("dict"), optimizer=optim.SGD(0.1)), micro(X, Y))
    assert found.loss_sum == pytest.approx(3 * EXPECTED)


def test_a_dict_batch_reaches_the_model_as_keywords(build, micro):
    found = tally(build(Model("scalar"), optimizer=optim.SGD(0.1)), micro({"x": X, "y": Y}))
    assert found.loss_sum == pytest.approx(3 * EXPECTED)


@pytest.mark.parametrize("x", [X, {"x": X}, (X,), [X]])
def test_inputs_may_be_an_array_a_dict_or_a_tuple(build, micro, x):
    found = tally(build(Model(), optimizer=optim.SGD(0.1), loss=nn.MSELoss()), micro(x, Y))
    assert found.weight == 3.0
    assert found.loss_sum == pytest.approx(3 * EXPECTED)


def test_an_objective_gets_the_batch_whole_and_gives_metrics(build, micro):
    def objective(model, batch):
        outputs = model(batch["features"])
        error = (outputs - batch["target"]) ** 2
        return Loss(sum=error.sum(), weight=6, metrics={"largest": (error.max(), 1)})

    replica = build(Model(), optimizer=optim.SGD(0.1), objective=objective)
    found = tally(replica, micro({"features": X, "target": Y}))
    assert found.weight == 6.0
    assert found.loss_sum == pytest.approx(3 * EXPECTED)
    assert found.metrics["largest"] == (pytest.approx(3.5**2), 1.0)
    assert not replica.counts_samples


def test_metrics_of_an_objective_are_added_over_micro_batches(build, micro):
    def objective(model, batch):
        return Loss(
            sum=model(batch[0]).sum(),
            weight=torch.tensor(2.0),
            metrics={"m": (torch.tensor(3.0), 1)},
        )

    replica = build(Model(), optimizer=optim.SGD(0.1), objective=objective)
    replica.begin_update()
    for _ in range(3):
        replica.forward_backward(micro(X, Y), scale=1.0, seed=0, ready=print)
    found = replica.finish_update()
    assert found.weight == 6.0
    assert found.metrics == {"m": (9.0, 3.0)}


def test_an_objective_without_counted_units_adds_nothing(build, micro):
    def objective(model, batch):
        return Loss(sum=model(batch[0]).sum() / 0.0, weight=0)

    found = tally(build(Model(), optimizer=optim.SGD(0.1), objective=objective), micro(X, Y))
    assert (found.loss_sum, found.weight, list(found.used)) == (0.0, 0.0, [False])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda out: out.sum(), "unified_ipu.Loss"),
        (lambda out: Loss(out, 3), "scalar"),
        (lambda out: Loss(1.0, 3), "scalar"),
        (lambda out: Loss(out.sum(), 3, BAD_METRICS), r"pair \(sum, weight\)"),
    ],
)
def test_what_is_no_pair_is_refused(build, micro, result, message):
    replica = build(
        Model(), optimizer=optim.SGD(0.1), objective=lambda model, batch: result(model(batch[0]))
    )
    with pytest.raises(ConfigError, match=message):
        tally(replica, micro(X, Y))


def test_an_objective_refuses_padding_but_not_a_batch_of_nothing_else(build, micro):
    replica = build(
        Model(),
        optimizer=optim.SGD(0.1),
        objective=lambda model, batch: Loss(model(batch[0]).sum(), 3),
    )
    with pytest.raises(ConfigError, match=r"batch\.remainder"):
        tally(replica, micro(X, Y, sample_weight=np.array([1, 1, 0], np.float32)))
    found = tally(replica, micro(X, Y, sample_weight=np.zeros(3, np.float32)))
    assert found.weight == 0.0
    assert tally(replica, micro(X, Y, sample_weight=np.ones(3, np.float32))).weight == 3.0


def test_a_batch_that_is_no_pair_is_refused_where_a_loss_needs_one(build, micro):
    replica = build(Model(), optimizer=optim.SGD(0.1), loss=nn.MSELoss())
    with pytest.raises(DataError, match=r"\(x, y\)"):
        tally(replica, micro(X))
    with pytest.raises(DataError, match="objective="):
        tally(replica, micro({"x": X}))


def test_sample_weights_of_a_triple_reach_the_loss(build, micro):
    weights = np.array([1.0, 0.0, 2.0])
    found = tally(build(Model(), optimizer=optim.SGD(0.1), loss=nn.MSELoss()), micro(X, Y, weights))
    errors = ((X @ [[0.5], [0.5]] - Y) ** 2)[:, 0]
    assert found.weight == 3.0
    assert found.loss_sum == pytest.approx(float((errors * weights).sum()))


def test_weight_may_come_as_a_tensor(build, micro):
    replica = build(
        Model("scalar"), optimizer=optim.SGD(0.1), weight=lambda batch: batch[1].sum() * 2
    )
    assert tally(replica, micro(X, Y)).weight == 6.0


def test_weight_that_is_no_number_is_refused(build, micro):
    replica = build(Model("scalar"), optimizer=optim.SGD(0.1), weight=lambda batch: "many")
    with pytest.raises(ConfigError, match="one number a batch"):
        tally(replica, micro(X, Y))

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu.adapter import Loss, metrics, optim
from unified_ipu.errors import ConfigError

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])


class Pair(NamedTuple):
    left: Any
    right: Any


class Counter(nn.Module):
    """Moves its buffers in evaluation too: one in place, one by a new tensor."""

    in_place: torch.Tensor
    replaced: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x):
        self.in_place += 1
        self.replaced = self.replaced + 1
        return x


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), Counter(), nn.Linear(8, 3)
    )


@pytest.mark.parametrize("what", ["evaluate", "predict"])
@pytest.mark.parametrize("training", [True, False])
def test_l6_evaluation_changes_no_state(build, micro, what, training):
    model = net().train(training)
    model[1].eval()  # frozen by the user
    replica = build(model, optimizer=optim.SGD(0.1), loss=nn.CrossEntropyLoss())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = [id(buffer) for buffer in model.buffers()]
    flags = [module.training for module in model.modules()]
    generator = torch.get_rng_state()
    if what == "evaluate":
        replica.evaluate(micro(X, Y), {"accuracy": metrics.accuracy}, seed=3)
    else:
        replica.predict(micro(X, Y), seed=3)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [id(buffer) for buffer in model.buffers()] == buffers
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())


def test_state_comes_back_when_evaluation_fails(build, micro):
    model = net()
    replica = build(model, loss=nn.CrossEntropyLoss())
    with pytest.raises(RuntimeError):
        replica.evaluate(micro(X[:, :3], Y), {}, seed=0)
    assert model.training


def test_evaluation_runs_in_evaluation_mode(build, micro):
    model = net()
    replica = build(model, loss=nn.CrossEntropyLoss())
    found = replica.evaluate(micro(X, Y), {"accuracy": metrics.accuracy}, seed=0)
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(X))
    expected = nn.functional.cross_entropy(outputs, torch.from_numpy(Y), reduction="sum")
    assert found["loss"] == (pytest.approx(float(expected), rel=1e-6), 6.0)
    hits = int((outputs.argmax(1).numpy() == Y).sum())
    assert found["accuracy"] == (float(hits), 6.0)


def test_l6_padding_does_not_count(build, micro):
    replica = build(net(), loss=nn.CrossEntropyLoss())
    ones = np.array([1, 1, 1, 1, 0, 0], np.float32)
    padded = replica.evaluate(
        micro(X, Y, sample_weight=ones), {"accuracy": metrics.accuracy}, seed=0
    )
    exact = replica.evaluate(micro(X[:4], Y[:4]), {"accuracy": metrics.accuracy}, seed=0)
    assert padded["accuracy"] == exact["accuracy"]
    assert padded["loss"][1] == exact["loss"][1] == 4.0
    assert padded["loss"][0] == pytest.approx(exact["loss"][0], rel=1e-6)


def test_l6_a_batch_without_counted_targets_has_no_loss_but_metrics(build, micro):
    replica = build(net(), loss=nn.CrossEntropyLoss())
    found = replica.evaluate(micro(X, np.full(6, -100)), {"accuracy": metrics.accuracy}, seed=0)
    assert found == {"loss": (0.0, 0.0), "accuracy": (0.0, 6.0)}


def test_a_plain_callable_gets_native_tensors(build, micro):
    kinds = []

    def metric(outputs, targets):
        kinds.append((type(outputs), type(targets)))
        return outputs.abs().sum(), len(targets)

    replica = build(net(), loss=nn.CrossEntropyLoss())
    found = replica.evaluate(micro(X, Y), {"size": metric}, seed=0)
    assert kinds == [(torch.Tensor, torch.Tensor)]
    assert found["size"][1] == 6.0


def test_a_metric_that_is_no_pair_is_refused(build, micro):
    replica = build(net(), loss=nn.CrossEntropyLoss())
    with pytest.raises(ConfigError, match=r"\(sum, weight\)"):
        replica.evaluate(micro(X, Y), {"bad": lambda o, y: o.sum()}, seed=0)


def test_an_objective_is_evaluated_with_its_metrics_and_others(build, micro):
    def objective(model, batch):
        out = model(batch[0])
        return Loss(out.sum(), len(out), {"own": (1.0, 2.0)})

    replica = build(net(), objective=objective)
    found = replica.evaluate(micro(X, Y), {"accuracy": metrics.accuracy}, seed=0)
    assert found["own"] == (1.0, 2.0)
    assert set(found) == {"loss", "own", "accuracy"}


def test_random_numbers_of_evaluation_are_keyed(build, micro):
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    replica = build(Noisy(), loss=nn.MSELoss())
    first, again, other = (replica.predict(micro(X, Y), seed=s) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_predictions_keep_their_structure(build, micro):
    class Many(nn.Module):
        def forward(self, x):
            return {"a": x, "b": (x + 1, [x.to(torch.bfloat16)]), "c": Pair(x, None)}

    found = build(Many(), loss=nn.MSELoss()).predict(micro(X, Y), seed=0)
    assert np.array_equal(found["a"], X)
    assert np.array_equal(found["b"][0], X + 1)
    assert found["b"][1][0].dtype == np.float32
    assert isinstance(found["c"], Pair)
    assert found["c"].right is None


def test_a_batch_of_inputs_alone_can_be_predicted(build, micro):
    replica = build(nn.Identity(), loss=nn.MSELoss())
    assert np.array_equal(replica.predict(micro(X), seed=0), X)


@pytest.mark.parametrize("form", ["pair", "attribute"])
def test_a_model_that_returns_its_loss_predicts_its_outputs(build, micro, form):
    class Own(nn.Module):
        def forward(self, x, y):
            return (x.mean(), x * 2) if form == "pair" else {"loss": x.mean(), "outputs": x * 2}

    found = build(Own()).predict(micro(X, Y), seed=0)
    assert np.array_equal(found if form == "pair" else found["outputs"], X * 2)

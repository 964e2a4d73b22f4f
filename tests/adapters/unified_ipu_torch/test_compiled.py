"""Modules that went through ``torch.compile``: same training, same names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu.adapter import Job, MicroBatch, optim
from unified_ipu_torch.tensors import plain_name

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
Y = np.array([0, 1, 1, 0, 1, 0])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


@pytest.fixture(autouse=True)
def _nothing_stays_compiled():
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_the_plain_one(drive, backend, count):
    plain = [network() for _ in range(count)]
    compiled = [network() for _ in range(count)]
    parts = [[MicroBatch(0, (X[i::count], Y[i::count]), 6 // count)] for i in range(count)]
    settings, loss = optim.AdamW(0.05), nn.CrossEntropyLoss()
    drivers = [
        drive([Job(model, settings, loss) for model in plain]),
        drive([Job(torch.compile(m, backend=backend), settings, loss) for m in compiled]),
    ]
    for _ in range(4):
        losses = [driver.update(*parts)[0] for driver in drivers]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for model, other in zip(plain, compiled):
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def test_its_tensors_have_the_names_of_the_plain_model(build):
    plain, compiled = build(network(), optimizer=optim.SGD(0.1)), network()
    replica = build(torch.compile(compiled, backend="eager"), optimizer=optim.SGD(0.1))
    assert replica.tensors() == plain.tensors()
    assert replica.notes == plain.notes
    values = replica.read([spec.name for spec in plain.tensors()])
    replica.write({name: value + 1 for name, value in values.items()})
    assert (
        compiled.load_state_dict(
            {name: torch.from_numpy(value) for name, value in values.items()}
        ).missing_keys
        == []
    )


def test_trainable_takes_the_plain_names(build):
    model = torch.compile(network(), backend="eager")
    replica = build(model, optimizer=optim.SGD(0.1), trainable=["3.bias"])
    assert [spec.name for spec in replica.tensors() if spec.trainable] == ["3.bias"]


def test_a_compiled_part_of_a_model_has_plain_names_too(build):
    model = nn.Sequential(network(), nn.Linear(2, 2))
    part = model.get_submodule("0")
    setattr(part, "0", torch.compile(part.get_submodule("0"), backend="eager"))
    names = [spec.name for spec in build(model, optimizer=optim.SGD(0.1)).tensors()]
    assert names[:2] == ["0.0.weight", "0.0.bias"]
    assert not any("_orig_mod" in name for name in names)


def test_evaluation_and_prediction_of_a_compiled_model_change_nothing(build):
    model = network()
    replica = build(torch.compile(model, backend="eager"), loss=nn.CrossEntropyLoss())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = MicroBatch(0, (X, Y), 6)
    expected = nn.functional.cross_entropy(
        network().eval()(torch.from_numpy(X)), torch.from_numpy(Y), reduction="sum"
    )
    loss_sum, weight = replica.evaluate(batch, {}, seed=0)["loss"]
    assert weight == 6.0
    assert loss_sum == pytest.approx(expected.item(), rel=1e-6)
    assert replica.predict(batch, seed=0).shape == (6, 2)
    assert model.training
    assert all(torch.equal(model.state_dict()[name], t) for name, t in before.items())


@pytest.mark.parametrize(
    ("name", "plain"),
    [("_orig_mod.a.b", "a.b"), ("a._orig_mod.b", "a.b"), ("my_orig_mod.b", "my_orig_mod.b")],
)
def test_only_the_wrapper_is_left_out_of_a_name(name, plain):
    assert plain_name(name) == plain

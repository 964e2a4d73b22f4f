from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu.adapter import Job, MicroBatch, optim
from unified_ipu.errors import ConfigError
from unified_ipu_torch.replica import TorchReplica

X, Y = np.random.default_rng(0).standard_normal((6, 3)), np.array([0, 1, 0, 1, 0, 1])


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def trained(drive, settings, model=None):
    model = net() if model is None else model
    driver = drive([Job(model, settings, nn.CrossEntropyLoss())])
    driver.update([MicroBatch(0, (X, Y), 6)])
    return model, driver.replicas[0]


def test_tensors_are_parameters_buffers_and_slots_in_a_fixed_order(drive):
    model = net()
    driver = drive([Job(model, optim.SGD(0.1, momentum=0.9), nn.CrossEntropyLoss())])
    before = [(s.name, s.role, s.sync) for s in driver.replicas[0].tensors()]
    parameters = [f"{n}" for n, _ in model.named_parameters()]
    assert before == [
        *((name, "parameter", "first") for name in parameters),
        ("1.running_mean", "buffer", "mean"),
        ("1.running_var", "buffer", "mean"),
        ("1.num_batches_tracked", "buffer", "first"),
    ]
    driver.update([MicroBatch(0, (X, Y), 6)])
    after = [(s.name, s.role) for s in driver.replicas[0].tensors()]
    assert after[len(before) :] == [(f"{name}/momentum_buffer", "slot") for name in parameters]


def test_buffers_are_those_of_state_dict(build):
    model = net()
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    names = [s.name for s in build(model, loss=nn.MSELoss()).tensors()]
    assert sorted(names) == sorted(model.state_dict())


@pytest.mark.parametrize("settings", [optim.SGD(0.1, momentum=0.9), optim.AdamW(0.1)], ids=str)
def test_what_was_read_can_be_written_into_a_fresh_replica(drive, settings):
    model, replica = trained(drive, settings)
    state = replica.read([spec.name for spec in replica.tensors()])
    other_model = net()
    fresh = drive([Job(other_model, settings, nn.CrossEntropyLoss())])
    fresh.replicas[0].write(state)
    assert [s.name for s in fresh.replicas[0].tensors()] == list(state)
    driver = drive([Job(model, replica._optimizer, nn.CrossEntropyLoss())])
    for each in (driver, fresh):
        each.update([MicroBatch(0, (X, Y), 6)])
    for name, value in model.state_dict().items():
        assert torch.equal(value, other_model.state_dict()[name]), name


def test_reading_copies(drive):
    model, replica = trained(drive, optim.SGD(0.1))
    copy = replica.read(["0.weight"])["0.weight"]
    copy[:] = 7.0
    assert not (model[0].weight == 7.0).any()


def test_writing_keeps_the_tensors_in_place(drive):
    model, replica = trained(drive, optim.SGD(0.1))
    weight = model[0].weight
    replica.write({"0.weight": np.full((4, 3), 2.0)})
    assert model[0].weight is weight
    assert bool((weight == 2.0).all())


def test_buffers_that_were_reassigned_are_found_by_name(build):
    class Count(nn.Module):
        count: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    model = Count()
    replica = build(model, loss=nn.MSELoss())
    model.count = model.count + 3
    assert replica.read(["count"])["count"] == 3
    assert replica.read(["count"])["count"].dtype == np.int64
    replica.write({"count": np.array(5)})
    assert int(model.count) == 5


def test_a_wrong_name_or_shape_is_refused_before_anything_is_written(drive):
    model, replica = trained(drive, optim.SGD(0.1))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ConfigError, match=r"\[4, 3\], got \[3, 4\]"):
        replica.write({"2.weight": np.zeros((2, 4)), "0.weight": np.zeros((3, 4))})
    with pytest.raises(ConfigError, match=r"'0\.wieght'; did you mean '0\.weight'"):
        replica.write({"0.weight": np.zeros((4, 3)), "0.wieght": np.zeros(4)})
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))


def with_own_names(names):
    job = Job(nn.Linear(2, 1), loss=nn.MSELoss())
    return TorchReplica(job, torch.device("cpu"), own_names=names)


def test_names_of_an_adapter_that_made_the_module_rename():
    replica = with_own_names({"weight": "fc.weight"})
    assert [s.name for s in replica.tensors()] == ["fc.weight", "bias"]
    replica.write({"fc.weight": np.ones((1, 2), np.float32)})
    assert replica.read(["fc.weight"])["fc.weight"].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"wieght": "w"}, "did you mean 'weight'"),
        ({"weight": "bias"}, "two tensors"),
    ],
)
def test_own_names_that_do_not_fit_are_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        with_own_names(names)

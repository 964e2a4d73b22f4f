"""What may change between compile and an update, and what may not; several inputs and outputs."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
import torch
from torch import nn

from unified_ipu.adapter import Job, MicroBatch, Place, optim
from unified_ipu.errors import ConfigError
from unified_ipu.plan import Plan
from unified_ipu_torch.adapter import TorchAdapter

X = np.random.default_rng(0).standard_normal((4, 3))
Y = np.random.default_rng(1).standard_normal((4, 2))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def values(model):
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def moved(model, before):
    return [name for name, tensor in before.items() if not torch.equal(tensor, values(model)[name])]


def parts(count):
    return [[MicroBatch(0, (X[i::count], Y[i::count]), 4 // count)] for i in range(count)]


@pytest.mark.parametrize("count", [1, 2])
def test_l1_10_a_parameter_frozen_after_compile_stays_and_moves_again(drive, count):
    models = [network() for _ in range(count)]
    settings = optim.AdamW(0.1, weight_decay=0.1)
    driver = drive([Job(model, settings, nn.MSELoss()) for model in models])
    driver.update(*parts(count))
    for model in models:
        model.get_submodule("0").requires_grad_(False)
    before = values(models[0])
    driver.update(*parts(count))
    assert moved(models[0], before) == ["2.weight", "2.bias"]
    for model in models:
        model.get_submodule("0").requires_grad_(True)
    before = values(models[0])
    driver.update(*parts(count))
    assert moved(models[0], before) == list(before)
    for model in models[1:]:
        assert moved(model, values(models[0])) == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_parameter_unfrozen_after_compile_is_refused_and_not_moved(drive, count):
    models = [network() for _ in range(count)]
    for model in models:
        model.get_submodule("0").requires_grad_(False)
    driver = drive([Job(m, torch.optim.SGD(m.parameters(), 0.1), nn.MSELoss()) for m in models])
    driver.update(*parts(count))
    models[0].get_parameter("0.weight").requires_grad_(True)
    before = values(models[0])
    with pytest.raises(ConfigError, match=r"'0\.weight' needed no gradient .* compile again"):
        driver.update(*parts(count))
    assert moved(models[0], before) == []


def test_a_gradient_from_before_compile_is_no_reason_to_refuse(drive):
    model = network()
    model(torch.from_numpy(X)).sum().backward()
    model.get_submodule("0").requires_grad_(False)
    driver = drive([Job(model, torch.optim.SGD(model.parameters(), 0.1), nn.MSELoss())])
    before = values(model)
    driver.update(*parts(1))
    assert moved(model, before) == ["2.weight", "2.bias"]


def test_a_group_added_after_compile_is_refused(drive):
    model = network()
    optimizer = torch.optim.SGD(model.get_submodule("2").parameters(), 0.1)
    driver = drive([Job(model, optimizer, nn.MSELoss())])
    driver.update(*parts(1))
    optimizer.add_param_group({"params": list(model.get_submodule("0").parameters())})
    with pytest.raises(ConfigError, match=r"had 1 parameter group\(s\) .* has 2 now"):
        driver.update(*parts(1))


def test_an_optimizer_made_before_the_model_changed_its_type_trains_it(drive):
    model = network().float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model.double()
    twin = network().float().double()
    driver = drive([Job(model, optimizer, nn.MSELoss())])
    expected = drive([Job(twin, optim.SGD(0.1, momentum=0.9), nn.MSELoss())])
    for _ in range(3):
        driver.update(*parts(1))
        expected.update(*parts(1))
    for name, tensor in values(twin).items():
        torch.testing.assert_close(values(model)[name], tensor, rtol=1e-13, atol=1e-15)


def test_a_parameter_replaced_after_the_optimizer_was_made_is_refused(build):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.get_submodule("2").register_parameter(
        "bias", nn.Parameter(torch.zeros(2, dtype=torch.float64))
    )
    with pytest.raises(ConfigError, match="after the model got its final parameters"):
        build(model, optimizer=optimizer, loss=nn.MSELoss())


LAZY = [
    (nn.Sequential(nn.Linear(1, 1), nn.LazyLinear(3)), r"'1\.weight'"),
    (nn.LazyBatchNorm1d(affine=False), "'running_mean'"),
]


@pytest.mark.parametrize(("model", "name"), LAZY, ids=["parameter", "buffer"])
@pytest.mark.parametrize("optimizer", [None, optim.SGD(0.1)], ids=["evaluate", "train"])
def test_lazy_tensors_are_refused_by_name(build, model, name, optimizer):
    with pytest.raises(ConfigError, match=name + r" is lazy .* run one batch"):
        build(model, optimizer=optimizer, loss=nn.MSELoss())


def test_a_lazy_model_trains_once_it_has_seen_a_batch(drive):
    model = nn.Sequential(nn.LazyLinear(2)).double()
    model(torch.from_numpy(X))
    before = values(model)
    drive([Job(model, optim.SGD(0.1), nn.MSELoss())]).update(*parts(1))
    assert moved(model, before) == ["0.weight", "0.bias"]


def test_a_wrapper_inside_the_model_is_refused_too():
    class DistributedDataParallel(nn.Module):
        """Stands in for torch's, which asks for a process group."""

    model = nn.Sequential(nn.Linear(1, 1), DistributedDataParallel())
    with pytest.raises(ConfigError, match=r"layer '1' is wrapped in DistributedDataParallel"):
        TorchAdapter().build(Job(model, loss=nn.MSELoss()), Plan(), Place())


class TwoHeads(nn.Module):
    """Two inputs, two outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.left, self.right = nn.Linear(3, 2).double(), nn.Linear(2, 2).double()

    def forward(self, x, y):
        return {"sum": self.left(x) + self.right(y), "right": (self.right(y),)}


def both(outputs: Any, targets: Any) -> torch.Tensor:
    """Mean over rows of both heads' squared errors."""
    first = (outputs["sum"] - targets["sum"]).square().sum(1)
    second = (outputs["right"][0] - targets["right"]).square().sum(1)
    return (first + second).mean()


@pytest.mark.parametrize("x", [{"x": X, "y": Y}, (X, Y)], ids=["keywords", "positions"])
@pytest.mark.parametrize("split", [[[4]], [[2, 1], [1]]])
def test_several_inputs_and_outputs_train_as_one_loop_over_torch(drive, x, split):
    targets = {"sum": Y, "right": Y[:, ::-1].copy()}

    def rows(start, stop):
        cut = slice(start, stop)
        inputs = (
            {k: v[cut] for k, v in x.items()} if isinstance(x, dict) else tuple(v[cut] for v in x)
        )
        return MicroBatch(0, (inputs, {k: v[cut] for k, v in targets.items()}), stop - start)

    plain = TwoHeads()
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    native = {name: torch.from_numpy(value) for name, value in targets.items()}
    models = [TwoHeads() for _ in split]
    driver = drive([Job(model, optim.SGD(0.1), both) for model in models])
    for _ in range(3):
        optimizer.zero_grad()
        expected = both(plain(torch.from_numpy(X), torch.from_numpy(Y)), native)
        expected.backward()
        optimizer.step()
        start = 0
        batches: List[Any] = []
        for sizes in split:
            batches.append([])
            for size in sizes:
                batches[-1].append(rows(start, start + size))
                start += size
        loss, weight, _ = driver.update(*batches)
        assert weight == 4.0
        assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, tensor in values(plain).items():
        torch.testing.assert_close(values(models[-1])[name], tensor, rtol=1e-12, atol=1e-14)
    outputs = driver.replicas[0].predict(rows(0, 4), seed=0)
    assert set(outputs) == {"sum", "right"}
    expected_outputs = plain.right(torch.from_numpy(Y)).detach().numpy()
    np.testing.assert_allclose(outputs["right"][0], expected_outputs, rtol=1e-11)

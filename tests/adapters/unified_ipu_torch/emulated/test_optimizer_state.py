"""State of PopTorch's optimizers: its names, and its way to the device and back."""

from __future__ import annotations

import copy

import pytest
import torch

from unified_ipu_torch.emulated import poptorch

X, TARGET = torch.ones(4, 2), torch.zeros(4, 1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(2, 1)
        self.loss = torch.nn.MSELoss()

    def forward(self, x, target=None):
        out = self.layer(x)
        return out if target is None else (out, self.loss(out, target))


def test_the_optimizers_state_is_read_from_the_device_and_goes_back():
    def make(model):
        return poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model = Net()
    optimizer = make(model)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(X, TARGET)
    state = optimizer.state_dict()
    assert "Accl___layer.weight" in state["ipu_state"]
    weights = copy.deepcopy(model.state_dict())
    executor(X, TARGET)
    expected = model.layer.weight.detach().clone()

    resumed = Net()
    resumed.load_state_dict(weights)
    other = make(resumed)
    other.load_state_dict(state)
    poptorch.trainingModel(resumed, optimizer=other)(X, TARGET)
    assert torch.equal(resumed.layer.weight, expected)


def test_a_state_has_the_names_and_values_of_popart_from_compilation_on():
    model = Net()
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.05, weight_decay=0.025, loss_scaling=0.75
    )
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    assert optimizer.state_dict()["ipu_state"] is None
    executor.compile(X, TARGET)
    values = optimizer.state_dict()["ipu_param"]
    assert values["scaledLearningRate0___specific___layer.bias"].item() == pytest.approx(
        0.05 / 0.75
    )
    assert values["weightDecayScaleFactor0___specific___layer.bias"].item() == pytest.approx(
        1 - 0.05 * 0.025
    )
    assert values["lossScaling_FLOAT"].item() == 0.75
    assert optimizer.state_dict()["ipu_state"] == {}  # this one needs none

    model = Net()
    adam = poptorch.optim.Adam(model.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, optimizer=adam)
    executor.compile(X, TARGET)
    state = adam.state_dict()
    assert state["ipu_param"]["learningRate___specific___layer.weight"].item() == 0.5
    assert not state["ipu_state"]["Accl1___layer.weight"].any()


def test_an_incomplete_state_leaves_the_rest_on_the_device():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(X, TARGET)
    state = copy.deepcopy(optimizer.state_dict())
    kept = state["ipu_state"].pop("Step___layer.weight")
    state["ipu_state"]["Step___layer.bias"] = torch.tensor(41.0)
    optimizer.load_state_dict(state)
    executor(X, TARGET)
    found = optimizer.state_dict()["ipu_state"]
    assert (kept.item(), found["Step___layer.weight"].item()) == (1.0, 2.0)
    assert found["Step___layer.bias"].item() == 42.0


def test_a_loaded_state_brings_its_learning_rate_which_holds_until_another_is_set():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(X, TARGET)
    state = copy.deepcopy(optimizer.state_dict())
    for name in ("weight", "bias"):
        state["ipu_param"][f"learningRate___specific___layer.{name}"] = torch.tensor(0.0)
    optimizer.load_state_dict(state)
    before = model.layer.weight.detach().clone()
    executor.setOptimizer(optimizer)  # the same values as before: nothing to send
    executor(X, TARGET)
    assert torch.equal(model.layer.weight, before)
    optimizer.param_groups[0]["lr"] = 0.25
    executor.setOptimizer(optimizer)
    executor(X, TARGET)
    assert not torch.equal(model.layer.weight, before)

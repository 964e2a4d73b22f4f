"""What the PopTorch device refuses, what it tells, and which programs it makes."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Dict, Tuple

import numpy as np
import pytest
import torch
from torch.nn import functional

import unified_ipu as ui
from tests.adapters.unified_ipu_torch.ipu.parity import classes, mlp, plan_for, values
from unified_ipu.adapter import NativeCall
from unified_ipu.errors import AdapterLoadError, CapabilityError, ConfigError, PlanError
from unified_ipu_torch.ipu import sdk as sdk_module
from unified_ipu_torch.ipu.programs import InferenceProgram, TrainingProgram


def step(model, batch, *, target="ipu-emulated", settings=None, **compiled):
    """Compile, and run the first call."""
    compiled.setdefault("loss", torch.nn.CrossEntropyLoss())
    compiled.setdefault("optimizer", ui.optim.SGD(lr=0.1))
    with ui.Session(plan_for(target, **(settings or {})), argv=[]) as session:
        program = session.compile(model, **compiled)
        return program.step(next(iter(session.loader(batch))))


class FunctionalDropout(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return functional.dropout(self.net(x), 0.5, self.training)


def dropped(rate):
    return torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout(rate))


@pytest.mark.parametrize(
    ("model", "words"),
    [(dropped(0.5), "layer '1'"), (FunctionalDropout(), r"forward \(aten")],
    ids=["layer", "function"],
)
def test_l3_random_layers_are_refused_before_the_first_update(model, words):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CapabilityError, match=f"{words}.*ipu.random_layers"):
        step(model, classes(16))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("rate", [0.0, 0.5], ids=["rate 0", "in evaluation mode"])
def test_layers_that_draw_nothing_are_fine(rate):
    model = dropped(rate)
    if rate:
        model[1].eval()  # by itself, so it stays so
    assert step(model, classes(16)).updates == 1


def test_l3_a_user_may_ask_for_the_devices_own_random_numbers(caplog):
    settings = {"ipu__random_layers": "native"}
    record = step(dropped(0.5), classes(16), settings=settings)
    assert record.updates == 1
    assert "random layers draw by the device's own generator" in caplog.text


REFUSED: Dict[str, Tuple[Dict[str, Any], str]] = {
    "float64": ({"model": mlp().double()}, "float64.*model.float()"),
    "an objective": (
        {"model": mlp(), "loss": None, "objective": lambda model, batch: None},
        "pass weight= to compile",
    ),
    "an optimizer": ({"model": mlp(), "optimizer": torch.optim.Adagrad}, "Adagrad is not driven"),
    "amsgrad": (
        {"model": mlp(), "optimizer": lambda p: torch.optim.Adam(p, amsgrad=True)},
        "amsgrad=",
    ),
    "maximize": (
        {"model": mlp(), "optimizer": lambda p: torch.optim.SGD(p, 0.1, maximize=True)},
        "negate the loss",
    ),
    "dampening": (
        {"model": mlp(), "optimizer": ui.optim.SGD(lr=0.1, momentum=0.9, dampening=0.5)},
        "damps the first gradient too",
    ),
    "clipping with momentum": (
        {
            "model": mlp(),
            "optimizer": ui.optim.SGD(lr=0.1, momentum=0.9),
            "settings": {"update__clip_norm": 1.0},
        },
        "clips the velocity",
    ),
    "clipping what is scaled": (
        {"model": mlp(), "settings": {"update__clip_norm": 1.0, "precision__loss_scale": 8.0}},
        "still have the loss scale",
    ),
    "half precision": (
        {"model": mlp(), "settings": {"precision__compute": "float16"}},
        "precision.compute",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_device_cannot_do_is_refused_when_compiled(name):
    arguments, words = REFUSED[name]
    arguments = dict(arguments)
    model = arguments.pop("model")
    optimizer = arguments.get("optimizer")
    if callable(optimizer):
        arguments["optimizer"] = optimizer(model.parameters())
    with pytest.raises(CapabilityError, match=words.replace("(", r"\(").replace(")", r"\)")):
        step(model, classes(16), **arguments)


def test_a_target_without_the_sdk_says_what_of_it_is_missing():
    with pytest.raises(PlanError, match="no Poplar SDK is enabled"):
        step(mlp(), classes(16), target="ipu")
    with pytest.raises(AdapterLoadError, match="poptorch cannot be imported"):
        sdk_module.load_sdk("ipu")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"ipuHardwareIsAvailable": lambda: True}, ("ipu", "ipu-emulated")),
        ({"ipuHardwareIsAvailable": lambda: False}, ("ipu-emulated",)),
        ({"ipuHardwareIsAvailable": lambda: True, "__emulated__": True}, ("ipu-emulated",)),
    ],
    ids=["hardware", "none", "emulated"],
)
def test_an_ipu_is_a_target_where_the_real_sdk_sees_one(monkeypatch, attributes, expected):
    poptorch = ModuleType("poptorch")
    vars(poptorch).update(attributes, __spec__=ModuleSpec("poptorch", None))
    monkeypatch.setitem(sys.modules, "poptorch", poptorch)
    assert sdk_module.usable_targets.__wrapped__() == expected


def test_l2_padding_needs_a_loss_of_rows():
    def mean(outputs, targets):
        return functional.cross_entropy(outputs, targets)

    def opaque(outputs, targets):
        return mean(outputs, targets)

    with pytest.raises(PlanError, match='loss_reduction="none"'):
        step(mlp(), classes(13), loss=opaque)


def test_a_weight_that_the_objective_contradicts_is_an_error():
    def objective(model, batch):
        outputs = model(batch[0])
        return ui.Loss(sum=outputs.sum(), weight=float(len(outputs)))

    with pytest.raises(ConfigError, match=r"counted 32 in a call, the objective 16"):
        step(mlp(), values(16), loss=None, objective=objective, weight=lambda batch: 8.0)


def test_a_loss_of_another_shape_than_said_is_an_error():
    def rows(outputs, targets):
        return ((outputs - targets) ** 2).sum(1)

    with pytest.raises(ConfigError, match="expected a scalar"):
        step(mlp(2), values(16), loss=rows)
    with pytest.raises(ConfigError, match="one value a row"):
        step(mlp(2), values(16), loss=lambda o, y: rows(o, y).mean(), loss_reduction="none")


class Unhappy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(5, 3))
        self.scaled = self.weight * 2  # a tensor with a graph

    def forward(self, x):
        return x @ self.weight


def test_a_model_that_cannot_be_copied_is_an_error_that_says_why():
    with pytest.raises(ConfigError, match="cannot be copied"):
        step(Unhappy(), classes(16))


@pytest.fixture
def programs(monkeypatch):
    """The lengths of all training programs that are made, and how often each kind detaches."""
    made = []
    original = TrainingProgram.__init__

    def init(self, executor, *arguments, **more):
        original(self, executor, *arguments, **more)
        made.append(executor.options.device_iterations)

    monkeypatch.setattr(TrainingProgram, "__init__", init)
    return made


def test_each_length_of_a_call_is_compiled_once(programs):
    with ui.Session(plan_for("ipu-emulated"), argv=[]) as session:
        program = session.compile(
            mlp(), loss=torch.nn.CrossEntropyLoss(), optimizer=ui.optim.SGD(lr=0.1)
        )
        program.fit(session.loader(classes(80)), epochs=3)  # 5 updates: 3 and 2
    assert programs == [3, 2]


def test_a_setting_that_is_compiled_in_makes_new_programs(programs):
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with ui.Session(plan_for("ipu-emulated"), argv=[]) as session:
        program = session.compile(net, loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer)
        loader = session.loader(classes(48))
        for _ in range(2):
            for call in loader:
                program.step(call)
        optimizer.param_groups[0]["momentum"] = 0.5
        for call in loader:
            program.step(call)
        slots = [spec.name for spec in program.executor.tensors() if spec.role == "slot"]
    assert programs == [3, 3]
    assert len(slots) == 4


def test_only_one_program_has_the_device(monkeypatch):
    attached = []

    def run(self, *arguments):
        attached.append([each for each in fleet() if each._executor.isAttachedToDevice()])
        return originals[type(self)](self, *arguments)

    originals = {kind: kind.run for kind in (TrainingProgram, InferenceProgram)}
    for kind in originals:
        monkeypatch.setattr(kind, "run", run)
    with ui.Session(plan_for("ipu-emulated"), argv=[]) as session:
        program = session.compile(
            mlp(), loss=torch.nn.CrossEntropyLoss(), optimizer=ui.optim.SGD(lr=0.1)
        )
        executor: Any = program.executor
        known = executor._device._programs

        def fleet():
            return [*known._training.values(), *known._inference.values()]

        test = session.loader(classes(20), train=False)
        program.fit(session.loader(classes(80)), epochs=2, validation=test)
        assert len(fleet()) == 3
    assert attached
    assert all(len(each) <= 1 for each in attached)


def test_the_users_model_is_left_alone_and_gets_the_weights_at_the_end():
    net = mlp()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with ui.Session(plan_for("ipu-emulated"), argv=[]) as session:
        program = session.compile(
            net, loss=torch.nn.CrossEntropyLoss(), optimizer=ui.optim.SGD(lr=0.1)
        )
        for call in session.loader(classes(16)):
            program.step(call)
        assert type(net) is torch.nn.Sequential
        weights = program.weights()
        program.load_weights({name: np.zeros_like(value) for name, value in weights.items()})
        assert all(not value.any() for value in program.weights().values())
        program.load_weights(weights)
        record = [program.step(call) for call in session.loader(classes(16))]
        assert record[0].loss < 2.0
    assert all(not torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(type(parameter) is torch.nn.Parameter for parameter in net.parameters())


def test_under_poprun_popdist_makes_the_options():
    class Options:
        def __init__(self, ipus_per_replica):
            self.ipus_per_replica, self.iterations = ipus_per_replica, 0

        def __getattr__(self, name):
            assert name == "deviceIterations"
            return lambda count: vars(self).update(iterations=count)

    package, module = ModuleType("popdist_of_a_test"), ModuleType("popdist_of_a_test.poptorch")
    vars(module)["Options"] = Options
    sys.modules.update({package.__name__: package, module.__name__: module})
    try:
        sdk = sdk_module.Sdk(sdk_module.load_sdk("ipu-emulated").poptorch, package)
        calls = [
            NativeCall("training", name, value, "")
            for name, value in (
                ("options.deviceIterations", 5),
                ("options.replicationFactor", 2),
                ("options.Distributed.configureProcessId", "=process_id, 2"),
            )
        ]
        options = sdk.options(calls, process=0, ipus_per_replica=4)
    finally:
        del sys.modules[package.__name__], sys.modules[module.__name__]
    assert (options.ipus_per_replica, options.iterations) == (4, 5)

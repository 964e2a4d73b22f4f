"""What a device holds is the host's too: checkpoints, weights, evaluation, and refusals."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs
from tests.adapters.unified_ipu_onnx.ipu.device_runs import DEVICE, HOST, change, data, mlp, plan
from unified_ipu import losses, optim
from unified_ipu.errors import AdapterLoadError, CapabilityError, ConfigError, DataError
from unified_ipu_onnx.adapter import OnnxAdapter
from unified_ipu_onnx.emulated import popart
from unified_ipu_onnx.ipu import sdk

pytestmark = pytest.mark.timeout(120)

SHAPE = {
    "batch__global_batch_size": 8,
    "batch__micro_batch_size": 2,
    "batch__updates_per_call": 2,
    "ipu__replicas_per_process": 2,
}
OPTIMIZERS = {"sgd": optim.SGD(lr=0.1, momentum=0.9), "adam": optim.Adam(lr=0.01, eps=1e-3)}


def session(base=DEVICE, **settings):
    return ui.Session(plan(base, **{**SHAPE, **settings}))


def compiled(opened, model=None, **given):
    given.setdefault("loss", losses.softmax_cross_entropy())
    given.setdefault("optimizer", OPTIMIZERS["sgd"])
    return opened.compile(mlp() if model is None else model, **given)


def steps(program, loader):
    for call in loader:
        program.step(call)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize(("first", "second"), [(DEVICE, HOST), (HOST, DEVICE)])
def test_a_checkpoint_moves_between_device_and_host(tmp_path, optimizer, first, second):
    batch = data(24)
    folder = str(tmp_path / "saved")
    with session(first) as opened:
        program = compiled(opened, optimizer=OPTIMIZERS[optimizer])
        loader = opened.loader(batch)
        steps(program, loader)
        opened.save(folder, model=program, train=loader)
        steps(program, loader)
        whole = program.weights()
    with session(second) as opened:
        program = compiled(opened, model=mlp(seed=9), optimizer=OPTIMIZERS[optimizer])
        loader = opened.loader(batch)
        opened.restore(folder, model=program, train=loader)
        steps(program, loader)
        assert change(program.weights(), whole) < 1e-5


def test_slots_have_the_names_and_values_of_pytorch():
    def slots(optimizer, rows=4):
        ones = np.ones((rows, 1), np.float32)
        with session(batch__global_batch_size=4, batch__updates_per_call=1) as opened:
            program = opened.compile(
                graphs.linear([[0.0]]), loss=losses.mean_squared_error(), optimizer=optimizer
            )
            steps(program, opened.loader((ones, ones)))
            names = [s.name for s in program._executor.tensors() if s.role == "slot"]
            values = program._executor.read(names)
            return {name.rpartition("/")[2]: value.item() for name, value in values.items()}

    assert slots(optim.SGD(lr=0.1)) == {}
    assert slots(optim.SGD(lr=0.1, momentum=0.5)) == {"momentum_buffer": -2.0}
    assert slots(optim.Adam(betas=(0.5, 0.75))) == {
        "step": 1.0,
        "exp_avg": -1.0,
        "exp_avg_sq": 1.0,
    }


def test_weights_that_are_loaded_are_trained_on_also_where_nothing_else_is_trained():
    with session() as opened:
        program = compiled(opened, trainable=["w2", "b2"])
        loader = opened.loader(data())
        steps(program, loader)
        held = program.weights()
        program.load_weights({name: 2.0 * value for name, value in held.items()})
        before = program.weights()
        np.testing.assert_array_equal(before["w1"], 2.0 * held["w1"])
        outputs = program.predict(opened.loader(data(), train=False))
        x = data()[0]
        by_hand = np.tanh(x @ before["w1"] + before["b1"]) @ before["w2"] + before["b2"]
        np.testing.assert_allclose(outputs, by_hand, rtol=1e-5, atol=1e-6)


def test_the_users_model_gets_the_weights_and_a_file_can_be_written(tmp_path):
    model = mlp()
    with session() as opened:
        program = compiled(opened, model=model)
        program.fit(opened.loader(data()), epochs=1)
        weights = program.weights()
        assert {n: v.tobytes() for n, v in graphs.held(model).items()} == {
            n: v.tobytes() for n, v in weights.items()
        }
        program.export_onnx(str(tmp_path / "model.onnx"))
    written = graphs.held(onnx.load(str(tmp_path / "model.onnx")))
    assert all((written[name] == value).all() for name, value in weights.items())


def measured(base, batch, model=mlp, **given):
    accuracy = {"accuracy": ui.metrics.accuracy}
    with session(base) as opened:
        program = compiled(opened, model=model(), **given)
        test = opened.loader(batch, train=False)
        found = program.evaluate(test, accuracy), program.predict(test)
        steps(program, opened.loader(batch))
        return (*found, program.evaluate(test, accuracy), program.weights())


def test_evaluation_counts_each_row_once_and_leaves_training_alone():
    batch = data(13)
    before, outputs, after, weights = measured(DEVICE, batch)
    expected = measured(HOST, batch)
    assert outputs.shape == (13, 3)
    np.testing.assert_allclose(outputs, expected[1], rtol=1e-5, atol=1e-6)
    for got, wanted in ((before, expected[0]), (after, expected[2])):
        assert got["accuracy"] == wanted["accuracy"]
        assert got["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert change(weights, expected[3]) < 2e-6
    with session() as opened:
        program = compiled(opened)
        steps(program, opened.loader(batch))
        np.testing.assert_array_equal(program.weights()["w1"], weights["w1"])


def several_outputs():
    model = mlp()
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0))
    model.graph.output.append(graphs.value("best", ["rows"], "int64"))
    return model


def test_a_graph_may_have_several_outputs_and_inputs_by_name():
    x, y = data(13)
    with session() as opened:
        loss = losses.softmax_cross_entropy(output="y")
        program = compiled(opened, model=several_outputs(), loss=loss)
        steps(program, opened.loader(({"x": x}, y)))
        found = program.predict(opened.loader(({"x": x}, y), train=False))
    assert (found["best"] == found["y"].argmax(1)).all()
    assert found["best"].dtype == np.int32  # a device has no int64


@pytest.mark.parametrize("bases", [(DEVICE, DEVICE), (HOST, DEVICE), (DEVICE, HOST)])
def test_a_second_program_of_a_model_on_a_device_is_refused(bases):
    model = mlp()
    given: Any = {"loss": losses.softmax_cross_entropy(), "optimizer": optim.SGD(lr=0.1)}
    with ui.Session(plan(bases[0], **SHAPE)) as first, ui.Session(plan(bases[1], **SHAPE)) as other:
        program = first.compile(model, **given)
        with pytest.raises(CapabilityError, match="open in another program"):
            other.compile(model, **given)
        program.close()
        other.compile(model, **given)


def test_a_program_without_loss_predicts():
    with session() as opened:
        program = opened.compile(mlp())
        assert program.predict(opened.loader(data(5), train=False)).shape == (5, 3)


def test_a_model_with_batch_statistics_predicts_and_does_not_train():
    def model():
        held = {n: np.full(4, v, np.float32) for n, v in (("s", 2), ("b", 1), ("m", 3), ("v", 4))}
        held["w"] = np.ones((4, 3), np.float32)
        return graphs.model(
            [
                helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"]),
                helper.make_node("MatMul", ["n", "w"], ["y"]),
            ],
            [graphs.value("x", ["rows", 4])],
            [graphs.value("y", ["rows", 3])],
            held,
            opset=11,
        )

    x, y = data(5)
    with session() as opened:
        program = opened.compile(model())
        found = program.predict(opened.loader((x, y), train=False))
        by_hand = ((x - 3.0) / np.sqrt(4.0 + 1e-5) * 2.0 + 1.0).sum(1, keepdims=True)
        np.testing.assert_allclose(found, np.repeat(by_hand, 3, 1), rtol=1e-5, atol=1e-5)
        with pytest.raises(CapabilityError, match="batch statistics"):
            compiled(opened, model=model())


def dropping():
    return graphs.model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Dropout", ["h"], ["y"], ratio=0.5),
        ],
        [graphs.value("x", ["rows", 4])],
        [graphs.value("y", ["rows", 3])],
        {"w": np.ones((4, 3), np.float32)},
        opset=11,
    )


def test_random_layers_are_refused_unless_the_devices_own_numbers_will_do():
    with session() as opened, pytest.raises(CapabilityError, match="set ipu"):
        compiled(opened, model=dropping())
    with session(ipu__random_layers="native") as opened:
        steps(compiled(opened, model=dropping()), opened.loader(data()))


def refused(words, kind=CapabilityError, settings=None, **given):
    with session(**(settings or {})) as opened, pytest.raises(kind, match=words):
        compiled(opened, **given)


def float64():
    return graphs.linear(np.ones((4, 3)), dtype="float64")


def unknown():
    model = mlp()
    model.graph.node.append(helper.make_node("Det", ["y"], ["z"], name="odd"))
    return model


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("objective= runs Python", {"loss": None, "objective": lambda m, b: None}),
        ("cannot compute loss=", {"loss": lambda o, t: o.sum()}),
        ("cannot compute loss=", {"loss": torch.nn.CrossEntropyLoss(label_smoothing=0.1)}),
        ("dampening to 0", {"optimizer": optim.SGD(lr=0.1, momentum=0.9, dampening=0.5)}),
        ("RMSprop is not written", {"optimizer": lambda m: torch.optim.RMSprop(m.parameters())}),
        (
            "no amsgrad",
            {"optimizer": lambda m: torch.optim.Adam(m.parameters(), amsgrad=True)},
        ),
        ("clips the velocity", {"settings": {"update__clip_norm": 1.0}}),
        (
            "before the loss scale",
            {
                "settings": {"update__clip_norm": 1.0, "precision__loss_scale": 8.0},
                "optimizer": optim.SGD(lr=0.1),
            },
        ),
        ('only "float32"', {"settings": {"precision__compute": "float16"}}),
        ("does not run", {"settings": {"ipu__offline_compile": True}}),
        ("weight 'w' .float64.", {"model": float64()}),
        ("node 'odd' .Det.", {"model": unknown()}),
    ],
)
def test_what_popart_cannot_do_is_refused_before_training(words, given):
    refused(words, **given)


def test_what_popart_refuses_when_it_compiles_is_said_in_its_words(monkeypatch):
    def refuse(**given):
        raise popart.popart_exception(f"no room for {max(given)}")

    with session() as opened:
        program = compiled(opened)
        monkeypatch.setattr(popart, "TrainingSession", refuse)
        with pytest.raises(CapabilityError, match="refuses the program: no room for userOptions"):
            steps(program, opened.loader(data(8)))


def test_values_that_no_int32_holds_are_refused_by_name():
    x, _ = data(8)
    with session() as opened:
        program = compiled(opened)
        with pytest.raises(DataError, match="the targets: int64 values do not fit int32"):
            steps(program, opened.loader((x, np.full(8, 2**40))))


def test_inputs_of_other_names_are_refused():
    x, y = data(8)
    with session() as opened:
        program = compiled(opened)
        with pytest.raises((ConfigError, DataError), match="x"):
            steps(program, opened.loader(({"z": x}, y)))


def test_the_emulation_is_offered_last_and_the_real_one_where_it_is(monkeypatch):
    adapter = OnnxAdapter()
    assert adapter.targets()[-1] == "ipu-emulated"
    assert "ipu" not in adapter.targets()
    monkeypatch.setitem(sys.modules, "popart", types.SimpleNamespace(TrainingSession=object))
    assert sdk.has_popart()
    assert adapter.targets()[-2:] == ("ipu", "ipu-emulated")
    assert sdk.sdk_of("ipu") is sys.modules["popart"]
    # The unrelated project of that name on public registries has no sessions.
    monkeypatch.setitem(sys.modules, "popart", types.SimpleNamespace())
    assert not sdk.has_popart()


def test_the_sdk_is_known_by_its_files_without_importing_it(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "popart", raising=False)
    package = tmp_path / "popart"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not sdk.has_popart()
    for name in ("builder.py", "session.py", "tensorinfo.py"):
        (package / name).touch()
    assert sdk.has_popart()


def test_a_missing_sdk_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "popart", None)
    with pytest.raises(AdapterLoadError, match="imported before onnx"):
        sdk.sdk_of("ipu")

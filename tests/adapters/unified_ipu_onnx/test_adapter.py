"""What the adapter accepts and declares, and what it says when something does not fit."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs
from unified_ipu.adapter import Adapter, Capability, Job, Place, Replica, find_adapter
from unified_ipu.errors import AdapterLoadError, CapabilityError, ConfigError
from unified_ipu_onnx import create
from unified_ipu_onnx.adapter import OnnxAdapter


def test_it_is_an_adapter_that_declares_every_capability():
    adapter = create()
    assert isinstance(adapter, Adapter)
    assert set(adapter.support) == set(Capability)
    job = Job(graphs.linear([[1.0]]), loss=ui.losses.mean_squared_error())
    assert isinstance(adapter.build(job, ui.Plan(), Place()), Replica)


def test_creating_it_and_asking_it_imports_no_framework():
    code = (
        "import sys; sys.modules.update(torch=None, onnx=None, onnxruntime=None); "
        "import unified_ipu_onnx; a = unified_ipu_onnx.create(); "
        "[sys.modules.pop(name) for name in ('torch', 'onnx', 'onnxruntime')]; "
        "assert a.accepts('m.onnx') and not a.accepts(object()); a.seed(1); "
        "from unified_ipu.plan import Plan; a.lower(Plan(), 'cpu'); "
        "assert a.denominator(None) is None; "
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_doctor_is_told_which_packages_read_train_and_evaluate(monkeypatch):
    facts = OnnxAdapter().facts()
    assert facts["onnx"] == f"{metadata.version('onnx')} (opset {onnx.defs.onnx_opset_version()})"
    assert facts["onnxruntime"].startswith(f"{metadata.version('onnxruntime')} (")
    assert "CPUExecutionProvider" in facts["onnxruntime"]
    assert facts["torch"] == torch.__version__
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert OnnxAdapter().facts()["onnxruntime"] == "not installed, torch evaluates"


def test_it_accepts_models_and_paths_of_them(tmp_path):
    for model in (graphs.linear([[1.0]]), "some/model.onnx", tmp_path / "m.onnx"):
        assert find_adapter(model).name == "onnx"
    adapter = create()
    for other in (torch.nn.Linear(1, 1), "model.pt", graphs.linear([[1.0]]).graph, None):
        assert not adapter.accepts(other)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_lower_knows_every_field_of_the_plan(target):
    lowering = create().lower(ui.Plan(seed=7), target)
    assert (lowering.adapter, lowering.refused) == ("onnx", ())
    assert lowering.settings["device"] == target
    assert lowering.settings["torch.manual_seed"] == 7


@pytest.mark.parametrize(
    ("target", "changes", "field"),
    [
        ("npu", {}, "target"),
        ("cpu", {"mesh.stage": 2}, "mesh.stage"),
    ],
)
def test_lower_refuses_what_is_not_built(target, changes, field):
    lowering = create().lower(ui.Plan().replace(changes), target)
    assert [path for path, _ in lowering.refused] == [field]


def test_an_unsupported_operator_is_refused_by_name():
    proto = graphs.model(
        [helper.make_node("Mystery", ["x"], ["y"], name="odd", domain="some.where")],
        [graphs.value("x", ["rows", 1])],
        [graphs.value("y", None)],
        {},
    )
    proto.opset_import.append(helper.make_opsetid("some.where", 1))
    with pytest.raises(CapabilityError, match=r"odd.*Mystery|Mystery.*odd"):
        OnnxAdapter().prepare(proto)


def test_without_onnx_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(AdapterLoadError, match=r"unified-ipu\[onnx\]"):
        OnnxAdapter().prepare("m.onnx")


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="is no ONNX model"):
        OnnxAdapter().prepare(path)
    with pytest.raises(ConfigError, match="cannot read"):
        OnnxAdapter().prepare(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"loss": "cost"}, r"loss='cost' is no output of the graph; known: y"),
        ({"loss": None}, r"'y' has 2 axes; pass one of unified_ipu.losses"),
        ({"loss": ui.losses.mean_squared_error(output="cost")}, "loss='cost' is no output"),
        ({"trainable": ["v"]}, r"trainable= names 'v'.*known: w"),
    ],
)
def test_what_does_not_fit_the_graph_is_named(given, words):
    asked = {
        "loss": ui.losses.mean_squared_error(),
        "optimizer": ui.optim.SGD(lr=0.1),
        **given,
    }
    with ui.Session(ui.Plan(), argv=[]) as session, pytest.raises(ConfigError, match=words):
        session.compile(graphs.linear(np.eye(2)), **asked)


def test_a_callable_optimizer_gets_the_module():
    proto = graphs.linear([[1.0]])

    def optimizer(module):
        return torch.optim.SGD([{"params": [module.w], "lr": 0.5}])

    x, y = np.full((1, 1), 2.0, np.float32), np.zeros((1, 1), np.float32)
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(proto, loss=ui.losses.mean_squared_error(), optimizer=optimizer)
        program.step((x, y))
    # d = 2 * (2w) * 2 = 8 at w = 1; 1 - 0.5 * 8.
    assert graphs.held(proto)["w"].tolist() == [[-3.0]]


def test_evaluation_alone_needs_no_optimizer():
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(graphs.linear(np.eye(2)), loss=ui.losses.mean_squared_error())
        x = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
        found = program.evaluate(session.loader((x, np.zeros_like(x)), train=False))
        assert found["loss"] == pytest.approx((1 + 4 + 9 + 25) / 4)
        rows = program.predict(session.loader((x, x), train=False))
        assert rows.tolist() == x.tolist()


def test_a_scope_seeds_torch():
    with create().scope(ui.Plan(seed=5), Place()):
        first = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(first, torch.rand(3))


def test_the_version_of_onnx_is_one_the_adapter_knows():
    assert onnx.defs.onnx_opset_version() >= 17

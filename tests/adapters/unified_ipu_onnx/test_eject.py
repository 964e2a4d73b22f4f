"""The lowering as a plain PopART script: it trains as the host does; refusals by name."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from unified_ipu.cli.main import main
from unified_ipu_onnx.emulated import popart

SCRIPT = """
import numpy as np
import unified_ipu as ui

def main():
    with ui.Session() as session:
        rows = np.sin(np.arange(90, dtype=np.float32)).reshape(30, 3)
        train = session.loader(ui.data.arrays(rows, {targets}))
        program = session.compile(
            "{folder}/net.onnx", loss={loss}, optimizer={optimizer}, {more}
        )
        program.fit(train, epochs=2)
        np.savez("{folder}/host.npz", **program.weights())

main()
"""

HOST = ["batch.global_batch_size=8", "batch.micro_batch_size=2", "batch.updates_per_call=3"]
DEVICE = ["batch.remainder=pad", "ipu.replicas_per_process=2"]
VALUES = "np.cos(np.arange(60, dtype=np.float32)).reshape(30, 2)"


def words(settings):
    return [word for each in settings for word in ("--set", each)]


def network(inputs=1):
    rng = np.random.RandomState(0)
    sizes = {"w1": (3, 5), "b1": (5,), "w2": (5, 2), "b2": (2,)}
    weights = [numpy_helper.from_array(rng.randn(*s).astype("f"), n) for n, s in sizes.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "w2", "b2"], ["y" if inputs == 1 else "z"]),
    ]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])]
    if inputs > 1:
        nodes.append(helper.make_node("Add", ["z", "more"], ["y"]))
        values.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["n", 2]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph(nodes, "net", values, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture
def lowered(tmp_path, monkeypatch):
    """Lower a small script; returns the new script, or the status of the command."""
    monkeypatch.chdir(tmp_path)

    def lower(settings=(), inputs=1, **parts):
        onnx.save(network(inputs), tmp_path / "net.onnx")
        given = {"targets": "np.arange(30) % 2", "loss": "ui.losses.softmax_cross_entropy()"}
        given.update(optimizer="ui.optim.SGD(lr=0.3, momentum=0.5)", more="")
        text = SCRIPT.format(folder=tmp_path, **{**given, **parts})
        (tmp_path / "train.py").write_text(text)
        both = words([*HOST, *DEVICE, *settings])
        status = main(["lower", "--write", "native.py", *both, "train.py"])
        return (tmp_path / "native.py") if status == 0 else status

    return lower


def trained_on_the_host(folder, settings, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *words([*HOST, "mesh.data=1", *settings])])
    runpy.run_path(str(folder / "train.py"), run_name="__main__")
    with np.load(folder / "host.npz") as saved:
        return {name: saved[name] for name in saved}


def trained_on_the_device(path, monkeypatch):
    """Run a written script as ``run --emulate`` does, with our packages out of its reach."""
    monkeypatch.setitem(sys.modules, "popart", popart)
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_native", path)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, "unified_ipu", None)
        spec.loader.exec_module(script)
    script.main()
    found = onnx.load(path.parent / "native.trained.onnx").graph.initializer
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in found}


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ([], {"more": "schedule=lambda update: 1.0 - update / 16"}),
        (
            ["update.reduction=sum"],
            {
                "loss": "ui.losses.mean_squared_error()",
                "targets": VALUES,
                "optimizer": "ui.optim.AdamW(lr=0.01)",
            },
        ),
        (
            ["update.clip_norm=0.1"],
            {
                "loss": "ui.losses.sigmoid_cross_entropy()",
                "targets": f"np.float32({VALUES} > 0)",
                "optimizer": "ui.optim.SGD(lr=0.3, weight_decay=0.1)",
            },
        ),
    ],
    ids=["sgd-schedule", "adamw-sum", "clip-decay"],
)
def test_l5_the_written_script_trains_as_the_host_does(
    tmp_path, lowered, monkeypatch, settings, parts
):
    path = lowered(settings, **parts)
    found = trained_on_the_device(path, monkeypatch)
    expected = trained_on_the_host(tmp_path, settings, monkeypatch)
    apart = np.sqrt(sum(float(((found[n] - expected[n]) ** 2).sum()) for n in expected))
    whole = np.sqrt(sum(float((expected[n] ** 2).sum()) for n in expected))
    assert len(expected) == 4
    assert apart < 1e-5 * whole


def test_the_script_is_formatted_and_imports_nothing_of_ours(lowered):
    path = lowered()
    text = path.read_text()
    imported = [
        getattr(node, "module", None) or node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert not [name for name in imported if name.startswith("unified_ipu")]
    assert "onnx" not in imported  # PopART wants to be imported before it
    for line in (
        "opts.accumulationFactor = 2  # batch.global_batch_size",
        "opts.replicatedGraphCount = 2  # ipu.replicas_per_process",
        "opts.accumulationAndReplicationReductionType = popart.ReductionType.Sum",
        '"defaultLearningRate": (0.3 * factor, False),',
        "self.session.updateOptimizerFromHost(optimizer_of(factor))",
    ):
        assert line in text
    graph = onnx.load(path.with_name("native.onnx"))
    assert graph.opset_import[0].version == 11
    assert [dim.dim_value for dim in graph.graph.input[0].type.tensor_type.shape.dim] == [2, 3]
    for width in ("88", "100"):
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check"]
        done = subprocess.run(
            [*command, "--line-length", width, str(path)], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "parts", "message"),
    [
        ([], {"optimizer": "None"}, "compile got no optimizer"),
        ([], {"loss": "ui.losses.huber()"}, "loss= is a ui.losses.huber; those of"),
        (
            [],
            {"loss": "ui.losses.softmax_cross_entropy(class_weights=[1.0, 2.0])"},
            "with class weights, or of more than one target a row, is not",
        ),
        ([], {"inputs": 2}, "the graph has the inputs ['x', 'more']; one is written"),
        (["update.clip_norm=0.1"], {}, "with momentum PopART clips the velocity"),
        (["ipu.available_memory_proportion=0.3"], {}, "is set node by node, which is not written"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(lowered, capsys, settings, parts, message):
    assert lowered(settings, **parts) == 1
    assert message in capsys.readouterr().err

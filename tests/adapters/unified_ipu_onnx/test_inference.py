"""Evaluation by onnxruntime: the weights of now, the same numbers, and a name where they differ."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs
from unified_ipu.errors import ContractError, DataError
from unified_ipu_onnx.inference import Inference
from unified_ipu_onnx.module import GraphModule

pytestmark = pytest.mark.timeout(120)
X = np.random.default_rng(0).random((10, 2), np.float32)


@pytest.fixture
def sessions(monkeypatch):
    """Sessions that are made, with the names of what each run was fed."""
    made = []

    class Watched(onnxruntime.InferenceSession):  # type: ignore[misc]  # has no types
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.options = args[1]
            self.fed = []
            made.append(self)

        def run(self, outputs, feeds, options=None):
            self.fed.append({name: value.ctypes.data for name, value in feeds.items()})
            return super().run(outputs, feeds, options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Watched)
    return made


def compiled(session, proto, **given):
    asked = {"loss": ui.losses.mean_squared_error(), "optimizer": ui.optim.SGD(lr=0.1), **given}
    return session.compile(proto, **asked)


def test_it_reads_the_weights_where_training_keeps_them(sessions):
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = compiled(session, graphs.linear(np.eye(2)))
        test = session.loader((X, X), train=False)
        for _ in range(3):
            program.step((X, -X))
            weight = program.weights()["w"]
            np.testing.assert_allclose(program.predict(test), X @ weight, rtol=1e-5)
            expected = ((X @ weight - X) ** 2).mean()
            np.testing.assert_allclose(program.evaluate(test)["loss"], expected, rtol=1e-5)
    assert len(sessions) == 1  # nothing was serialised again when weights changed
    assert len({feeds["w"] for feeds in sessions[0].fed}) == 1  # nor copied


def test_it_takes_this_ranks_share_of_the_cores(sessions):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ui.Session(ui.Plan(), argv=[]) as session:
            compiled(session, graphs.linear(np.eye(2))).predict(session.loader((X, X), train=False))
    finally:
        torch.set_num_threads(threads)
    options = sessions[0].options
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def three_nodes():
    return graphs.model(
        [helper.make_node("MatMul", ["x", "w"], ["h"], name="multiply"),
         helper.make_node("Tanh", ["h"], ["t"], name="bend"),
         helper.make_node("Add", ["t", "b"], ["y"], name="shift")],
        [graphs.value("x", ["rows", 2])],
        [graphs.value("y", None)],
        {"w": np.eye(2, dtype=np.float32), "b": np.ones(2, np.float32)},
    )  # fmt: skip


def test_the_first_node_that_differs_is_named():
    proto = three_nodes()
    wrong = three_nodes()
    wrong.graph.node[1].op_type = "Sigmoid"
    module = GraphModule.from_model(wrong).eval()
    with pytest.raises(ContractError, match=r"first at node 'bend' \(Tanh\), value 't'"):
        Inference(module, proto, None)(torch.from_numpy(X))


def test_only_the_first_batch_is_compared(sessions, monkeypatch):
    module = GraphModule.from_model(three_nodes()).eval()
    runs, run = [], module.run

    def counted(feeds, outputs):
        runs.append(outputs)
        return run(feeds, outputs)

    monkeypatch.setattr(module, "run", counted)
    inference = Inference(module, three_nodes(), None)
    with torch.no_grad():
        for _ in range(3):
            expected = module(torch.from_numpy(X))
            torch.testing.assert_close(inference(torch.from_numpy(X)), expected)
    assert len(runs) == 1
    assert len(sessions) == 1


def test_layers_of_training_are_those_of_inference():
    held = {
        "scale": np.array([2.0, 1.0], np.float32),
        "shift": np.zeros(2, np.float32),
        "mean": np.array([1.0, 0.0], np.float32),
        "variance": np.array([4.0, 1.0], np.float32),
        "ratio": np.array(0.5, np.float32),
        "train": np.array(True),
    }
    names = ["scale", "shift", "mean", "variance"]
    proto = graphs.model(
        [helper.make_node("BatchNormalization", ["x", *names], ["n", "m", "v"],
                          training_mode=1, epsilon=0.0),
         helper.make_node("Dropout", ["n", "ratio", "train"], ["y"])],
        [graphs.value("x", ["rows", 2])],
        [graphs.value("y", None)],
        held,
    )  # fmt: skip
    with ui.Session(ui.Plan(), argv=[]) as session:
        rows = compiled(session, proto).predict(session.loader((X, X), train=False))
    np.testing.assert_allclose(rows, np.stack([X[:, 0] - 1.0, X[:, 1]], axis=1), rtol=1e-5)


def test_another_number_of_rows_than_the_file_says_is_evaluated(sessions):
    plan = ui.Plan().replace({"batch.micro_batch_size": 4, "batch.remainder": "drop"})
    with ui.Session(plan, argv=[]) as session:
        program = compiled(session, graphs.linear(np.eye(2), rows=4))
        loader = session.loader((X, X), train=False, micro_batch_size=3)
        np.testing.assert_allclose(program.predict(loader), X, rtol=1e-6)
    assert len(sessions) == 1


def test_without_onnxruntime_torch_evaluates_and_it_is_said_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = compiled(session, graphs.linear(np.eye(2)))
        for _ in range(2):
            rows = program.predict(session.loader((X, X), train=False))
            np.testing.assert_allclose(rows, X)
    assert caplog.text.count("onnxruntime is not installed") == 1
    assert "evaluation runs the graph with torch" in caplog.text


def test_what_onnxruntime_cannot_run_is_run_by_torch(caplog):
    # A type that onnxruntime has no kernel for.
    proto = graphs.model(
        [helper.make_node("Cast", ["x"], ["h"], to=16),
         helper.make_node("Erf", ["h"], ["e"]),
         helper.make_node("Cast", ["e"], ["f"], to=1),
         helper.make_node("MatMul", ["f", "w"], ["y"])],
        [graphs.value("x", ["rows", 2])],
        [graphs.value("y", None)],
        {"w": np.eye(2, dtype=np.float32)},
    )  # fmt: skip
    with ui.Session(ui.Plan(), argv=[]) as session:
        rows = compiled(session, proto).predict(session.loader((X, X), train=False))
    expected = torch.erf(torch.from_numpy(X).bfloat16()).float().numpy()
    np.testing.assert_array_equal(rows, expected)
    assert "onnxruntime cannot run this graph" in caplog.text


def test_an_objective_reads_weights_of_the_model_it_is_given():
    def objective(model, batch):
        x, y = batch
        total = ((model(x) - y) ** 2).sum() + 0.0 * model.w.sum()
        return ui.Loss(sum=total, weight=y.numel(), metrics={"w": (model.w.sum(), 1)})

    with ui.Session(ui.Plan(), argv=[]) as session:
        program = compiled(session, graphs.linear(np.eye(2)), loss=None, objective=objective)
        found = program.evaluate(session.loader((X, X + 1.0), train=False))
    assert found["loss"] == pytest.approx(1.0)
    assert found["w"] == pytest.approx(2.0)


def embedding():
    return graphs.model(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        [graphs.value("x", ["rows"], "int64")],
        [graphs.value("y", None)],
        {"table": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )


def test_indices_narrower_than_the_graph_says_are_evaluated_as_they_are_trained(sessions):
    indices = np.array([2, 0], np.int32)
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = compiled(session, embedding())
        rows = program.predict(session.loader((indices, indices), train=False))
    assert rows.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert len(sessions[0].fed) == 1


def test_a_batch_that_onnxruntime_alone_refuses_is_run_by_torch(monkeypatch, caplog):
    def refuse(self, outputs, feeds, options=None):
        raise RuntimeError("no kernel for this shape")

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", refuse)
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = compiled(session, graphs.linear(np.eye(2)))
        for _ in range(2):
            rows = program.predict(session.loader((X, X), train=False))
            np.testing.assert_allclose(rows, X)
    assert caplog.text.count("cannot run this batch (no kernel for this shape)") == 1


def test_a_batch_that_is_wrong_is_still_an_error(sessions):
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = compiled(session, graphs.linear(np.eye(2)))
        wrong = np.ones((4, 3), np.float32)
        with pytest.raises(DataError, match=r"'multiply' \(MatMul\)"):
            program.predict(session.loader((wrong, wrong), train=False))
        right = session.loader((X, X), train=False)
        np.testing.assert_allclose(program.predict(right), X, rtol=1e-6)
    assert len(sessions[0].fed) == 2  # onnxruntime goes on after it


def test_a_graph_that_draws_is_evaluated_with_keyed_numbers(caplog, sessions):
    proto = graphs.model(
        [helper.make_node("RandomNormalLike", ["x"], ["noise"]),
         helper.make_node("Mul", ["noise", "w"], ["y"])],
        [graphs.value("x", ["rows", 2])],
        [graphs.value("y", None)],
        {"w": np.ones(2, np.float32)},
    )  # fmt: skip
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = compiled(session, proto)
        first, again = (program.predict(session.loader((X, X), train=False)) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    assert not sessions
    assert "draws random numbers, which only torch can key" in caplog.text


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_a_published_model_predicts_what_onnxruntime_alone_does(name):
    path = Path(onnx.__file__).parent / "backend/test/data/light" / f"{name}.onnx"
    images = np.random.default_rng(0).random((2, 3, 224, 224), np.float32)
    alone = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    data = alone.get_inputs()[0].name
    expected = np.concatenate([alone.run(None, {data: image[None]})[0] for image in images])
    plan = ui.Plan().replace({"batch.micro_batch_size": 1})
    with ui.Session(plan, argv=[]) as session:
        program = session.compile(path)
        loader = session.loader((images, np.zeros(2)), train=False)
        found = program.predict(loader)
        size = program.evaluate(loader, {"rows": lambda outputs, targets: (len(outputs), 1)})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert size["rows"] == 1.0
    assert np.isnan(size["loss"])

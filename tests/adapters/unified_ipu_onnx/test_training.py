"""Programs of ONNX models: what they train, where it ends up, and what is refused before."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs
from unified_ipu.errors import ConfigError
from unified_ipu_onnx import batch_checks
from unified_ipu_onnx.contents import data_files

pytestmark = pytest.mark.timeout(120)
ONES = np.ones((1, 2), np.float32)


def summed(outputs, targets):
    return outputs.sum()


def plan(micro=16, total=64, **changes):
    return ui.Plan().replace(
        {"batch.micro_batch_size": micro, "batch.global_batch_size": total, **changes}
    )


def step_once(model, session, **given):
    asked = {"loss": summed, "loss_reduction": "sum", "optimizer": ui.optim.SGD(lr=0.1), **given}
    program = session.compile(model, **asked)
    program.step((ONES, ONES))
    return program


@pytest.mark.case("O-X1")
def test_the_users_own_model_holds_the_trained_weights():
    proto = graphs.linear([[1.0, 2.0], [3.0, 4.0]])
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    with ui.Session(ui.Plan(), argv=[]) as session:
        step_once(proto, session)
    np.testing.assert_allclose(graphs.held(proto)["w"], [[0.9, 1.9], [2.9, 3.9]], rtol=1e-6)
    for model in (proto, before):
        model.graph.initializer[0].ClearField("raw_data")
    assert proto == before  # nothing but the values differs


def test_fit_ends_with_the_weights_in_the_users_model():
    proto = graphs.linear(np.eye(2))
    x = np.random.default_rng(0).random((8, 2), np.float32)
    with ui.Session(plan(4, 4), argv=[]) as session:
        program = session.compile(
            proto, loss=ui.losses.mean_squared_error(), optimizer=ui.optim.SGD(lr=0.1)
        )
        program.fit(session.loader((x, -x)), epochs=1)
        assert graphs.held(proto)["w"].tobytes() == program.weights()["w"].tobytes()
        assert graphs.held(proto)["w"].tolist() != np.eye(2).tolist()


def test_a_file_stays_as_it_is_until_it_is_written(tmp_path):
    path, other = tmp_path / "m.onnx", tmp_path / "trained.onnx"
    onnx.save(graphs.linear([[1.0, 2.0], [3.0, 4.0]]), str(path))
    before = path.read_bytes()
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = step_once(path, session)
        program.export_onnx(other)
    assert path.read_bytes() == before
    np.testing.assert_allclose(
        graphs.held(onnx.load(str(other)))["w"], [[0.9, 1.9], [2.9, 3.9]], rtol=1e-6
    )


@pytest.mark.case("O-X4")
def test_a_model_with_data_outside_is_trained_and_saved_over_itself(tmp_path):
    path = tmp_path / "m.onnx"
    weight = np.zeros((2, 2048), np.float32)
    onnx.save_model(
        graphs.linear(weight),
        str(path),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    x, y = np.ones((1, 2), np.float32), np.ones((1, 2048), np.float32)
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = session.compile(
            str(path), loss=summed, loss_reduction="sum", optimizer=ui.optim.SGD(lr=1.0)
        )
        for times in (1, 2, 3):
            program.step((x, y))
            program.export_onnx(path)
            assert (graphs.held(onnx.load(str(path)))["w"] == -times).all()
            assert (tmp_path / "weights.bin").stat().st_size == weight.nbytes
    assert data_files(path) == {"w": "weights.bin"}


def reshaping(rows, shape):
    """``x [rows, 2]`` reshaped, then times a matrix."""
    return graphs.model(
        [
            helper.make_node("Reshape", ["x", "shape"], ["r"], name="flatten"),
            helper.make_node("MatMul", ["r", "w"], ["y"], name="multiply"),
        ],
        [graphs.value("x", [rows, 2])],
        [graphs.value("y", None)],
        {"shape": np.array(shape), "w": np.eye(2, dtype=np.float32)},
    )


@pytest.mark.case("O-X8")
@pytest.mark.parametrize("shape", [[1, 2], [1, -1]])
def test_a_batch_size_baked_into_a_node_is_an_error_before_training(shape):
    with ui.Session(plan(3, 3), argv=[]) as session:
        with pytest.raises(ConfigError) as caught:
            session.compile(reshaping("rows", shape), loss=summed)
    message = str(caught.value)
    assert "'flatten' (Reshape)" in message or "'multiply' (MatMul)" in message
    assert "of 1 row only" in message
    assert "batch.micro_batch_size is 3" in message
    with ui.Session(plan(1, 3), argv=[]) as session:
        step_once(reshaping("rows", shape), session)


@pytest.mark.case("O-X8")
def test_a_batch_size_that_an_input_says_is_an_error_before_training():
    with ui.Session(plan(3, 3), argv=[]) as session:
        with pytest.raises(ConfigError, match=r"input 'x' fits micro-batches of 1 row only.*is 3"):
            session.compile(graphs.linear(np.eye(2), rows=1), loss=summed)


@pytest.mark.case("O-X8")
@pytest.mark.parametrize("proto", [graphs.linear(np.eye(2), rows=4), reshaping("rows", [4, 2])])
def test_a_baked_size_equal_to_the_plans_must_never_meet_a_shorter_batch(proto):
    with ui.Session(plan(4, 8), argv=[]) as session:
        with pytest.raises(ConfigError, match=r'of 4 rows only.*batch.remainder = "drop"'):
            session.compile(proto, loss=summed)
    x = np.ones((19, 2), np.float32)
    with ui.Session(plan(4, 8, **{"batch.remainder": "drop"}), argv=[]) as session:
        program = session.compile(
            proto, loss=ui.losses.mean_squared_error(), optimizer=ui.optim.SGD(lr=0.1)
        )
        assert program.fit(session.loader((x, x)), epochs=1).counts["samples_dropped"] == 3


def test_a_reshape_that_keeps_the_rows_is_no_baked_size():
    for shape in ([-1, 2], [0, 2]):
        with ui.Session(plan(3, 3), argv=[]) as session:
            step_once(reshaping("rows", shape), session)


@pytest.mark.case("O-X8")
def test_a_row_that_is_joined_to_those_of_the_batch_is_found():
    """A class token that the exporter wrote out for a batch of one."""
    proto = graphs.model(
        [helper.make_node("Concat", ["token", "x"], ["y"], axis=1, name="prepend")],
        [graphs.value("x", ["rows", 4, 2])],
        [graphs.value("y", None)],
        {"token": np.zeros((1, 1, 2), np.float32)},
    )
    with ui.Session(plan(3, 3), argv=[]) as session:
        with pytest.raises(ConfigError, match=r"'prepend' \(Concat\) fits .* of 1 row only"):
            session.compile(proto, loss=summed)


def test_a_graph_that_fixes_no_size_is_not_run_at_compile(monkeypatch):
    runs = []
    monkeypatch.setattr(batch_checks, "_run", lambda *arguments: runs.append(arguments))
    with ui.Session(plan(3, 3), argv=[]) as session:
        session.compile(graphs.linear(np.eye(2)), loss=summed)
    assert not runs


def test_what_is_not_trained_is_said(caplog):
    constant = helper.make_node(
        "Constant", [], ["w"], value=onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")
    )
    proto = graphs.model(
        [constant, helper.make_node("MatMul", ["x", "w"], ["h"]),
         helper.make_node("Add", ["h", "b"], ["y"])],
        [graphs.value("x", ["rows", 2])],
        [graphs.value("y", None)],
        {"b": np.zeros(2, np.float32)},
    )  # fmt: skip
    with ui.Session(ui.Plan(), argv=[]) as session:
        program = step_once(proto, session)
        assert list(program.weights()) == ["b"]
    assert "not trained, since no initializer holds it or nothing asked for it: 'w'" in caplog.text


def test_two_models_train_apart_and_one_model_together():
    first, second = graphs.linear(np.eye(2)), graphs.linear(np.eye(2))
    with ui.Session(ui.Plan(), argv=[]) as session:
        programs = [step_once(model, session) for model in (first, second, first)]
        np.testing.assert_allclose(programs[1].weights()["w"], np.eye(2) - 0.1, rtol=1e-6)
        for program in (programs[0], programs[2]):
            np.testing.assert_allclose(program.weights()["w"], np.eye(2) - 0.2, rtol=1e-6)
    # Once nobody trains it, the model is what counts, not what was made of it before.
    first.graph.initializer[0].raw_data = np.ones((2, 2), np.float32).tobytes()
    with ui.Session(ui.Plan(), argv=[]) as session:
        assert step_once(first, session).weights()["w"] == pytest.approx(np.full((2, 2), 0.9))

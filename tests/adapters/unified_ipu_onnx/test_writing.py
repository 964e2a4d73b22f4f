"""Weights back into the model and into its file: only values change, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from unified_ipu.errors import ConfigError
from unified_ipu_onnx.contents import data_files
from unified_ipu_onnx.values import put_values
from unified_ipu_onnx.writing import save_model

pytestmark = pytest.mark.timeout(120)


def linear_model(weight, *, others=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="multiply")],
        "linear",
        [x],
        [y],
        [numpy_helper.from_array(weight, "w"), *others],
        doc_string="a graph",
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    model.metadata_props.add(key="made", value="by hand")
    model.producer_name = "a test"
    return model


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def square(value=1.0):
    return np.full((64, 64), value, np.float32)


def stored(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(str(path)).graph.initializer}


def without_values(model):
    """A copy of a model in which trained values are left out."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        for field in ("raw_data", "float_data"):
            tensor.ClearField(field)
    return copy


def test_only_the_values_differ_after_training():
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [2], [1.0, 2.0])
    model = linear_model(square(), others=[scale])
    before = onnx.ModelProto()
    before.CopyFrom(model)
    put_values(model, {"w": torch.full((64, 64), 3.0), "scale": torch.tensor([5.0, 6.0])})
    assert without_values(model) == without_values(before)
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == square(3.0).tolist()
    assert numpy_helper.to_array(model.graph.initializer[1]).tolist() == [5.0, 6.0]


def test_an_unknown_name_a_shape_and_a_type_are_refused_before_anything_changes():
    model = linear_model(square())
    fine = {"w": torch.zeros(64, 64)}
    with pytest.raises(ConfigError, match=r"no initializer 'v'; it has \['w'\]"):
        put_values(model, {**fine, "v": torch.zeros(2)})
    for value in (torch.zeros(64), torch.zeros(64, 64, dtype=torch.float64)):
        with pytest.raises(ConfigError, match=r"'w' is FLOAT\[64, 64\]"):
            put_values(model, {"w": value})
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == square().tolist()


@pytest.mark.case("O-X9")
def test_bfloat16_is_saved_with_the_same_bytes(tmp_path):
    raw = b"".join(bits.to_bytes(2, "little") for bits in (0x3E80, 0x3F00, 0x3F80, 0x4000))
    tensor = helper.make_tensor("h", TensorProto.BFLOAT16, [2, 2], bytes(8), raw=True)
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    value = torch.tensor([[0.25, 0.5], [1.0, 2.0]], dtype=torch.bfloat16)
    save_model(model, tmp_path / "m.onnx", values={"h": value})
    put_values(model, {"h": value})
    saved = onnx.load(str(tmp_path / "m.onnx"))
    assert saved.graph.initializer[0].raw_data == raw
    assert model.graph.initializer[0].raw_data == raw
    assert saved.graph.initializer[0].data_type == TensorProto.BFLOAT16


@pytest.mark.case("O-X4")
def test_data_outside_is_replaced_and_not_appended(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save_model(
        linear_model(square(0.0)), str(path), save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    model = onnx.load(str(path), load_external_data=False)
    sizes = []
    for value in (1.0, 2.0, 3.0):
        save_model(model, path, values={"w": torch.full((64, 64), value)}, base_dir=tmp_path)
        sizes.append((tmp_path / "weights.bin").stat().st_size)
        assert stored(path)["w"].tolist() == square(value).tolist()
    assert sizes == [16384, 16384, 16384]
    assert names(tmp_path) == ["m.onnx", "weights.bin"]
    assert data_files(path) == {"w": "weights.bin"}


@pytest.mark.case("O-X4")
def test_a_save_that_fails_half_way_leaves_the_old_model(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    save_model(linear_model(square(1.0)), path, limit=1024)
    before = names(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            save_model(linear_model(square(2.0)), path, limit=1024)
    assert stored(path)["w"].tolist() == square(1.0).tolist()
    assert names(tmp_path) == before


@pytest.mark.case("O-X4")
def test_a_process_killed_at_any_moment_leaves_a_whole_model(tmp_path):
    script = Path(__file__).with_name("killed_save.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    deaths, size, files = map(int, done.stdout.split())
    assert deaths >= 8  # data, model, copy, its replacement, model again, each made durable
    assert size == 16384
    assert files < 2 * deaths  # what was left in use by a death is cleared away by the next save


def test_another_file_beside_it_never_loses_its_data(tmp_path):
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    onnx.save_model(
        linear_model(square(1.0)), str(first), save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    model = onnx.load(str(first), load_external_data=False)
    save_model(model, second, values={"w": torch.full((64, 64), 2.0)}, base_dir=tmp_path)
    assert stored(first)["w"].tolist() == square(1.0).tolist()
    assert stored(second)["w"].tolist() == square(2.0).tolist()
    assert data_files(second) == {"w": "second.onnx.data"}


def test_what_is_not_trained_stays_where_it_lies(tmp_path):
    path = tmp_path / "m.onnx"
    frozen = numpy_helper.from_array(np.arange(1000, dtype=np.int64), "frozen")
    onnx.save_model(
        linear_model(square(1.0), others=[frozen]), str(path), save_as_external_data=True,
        location="weights.bin", size_threshold=0,
    )  # fmt: skip
    model = onnx.load(str(path), load_external_data=False)
    save_model(model, path, values={"w": torch.full((64, 64), 2.0)}, base_dir=tmp_path)
    assert stored(path)["frozen"].tolist() == list(range(1000))
    assert stored(path)["w"].tolist() == square(2.0).tolist()


@pytest.mark.case("O-X5")
def test_beyond_the_limit_weights_lie_outside(tmp_path):
    path = tmp_path / "m.onnx"
    big = {f"big{k}": np.random.default_rng(k).random((512, 256), np.float32) for k in range(4)}
    others = [numpy_helper.from_array(value, name) for name, value in big.items()]
    model = linear_model(square(), others=others)  # 2 MiB and 16 KiB
    save_model(model, path, limit=2**20)
    assert path.stat().st_size < 2000
    onnx.checker.check_model(str(path))
    loaded = stored(path)
    for name, value in big.items():
        assert loaded[name].tobytes() == value.tobytes()
    assert data_files(path) == dict.fromkeys(["w", *big], "m.onnx.data")
    read = onnx.load(str(path))
    for tensor in read.graph.initializer:
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    assert read == model  # names, shapes, metadata and order


@pytest.mark.case("O-X5")
def test_a_model_beyond_the_limit_is_never_serialized_whole(tmp_path):
    serialized = []

    class Watched:
        def __init__(self, model):
            self._model = model

        def __getattr__(self, name):
            serialized.append(name)
            return getattr(self._model, name)

    save_model(Watched(linear_model(square())), tmp_path / "m.onnx", limit=1024)
    assert set(serialized) <= {"graph", "ListFields"}
    assert (tmp_path / "m.onnx").stat().st_size < 1024


def test_typed_fields_go_outside_with_equal_values(tmp_path):
    numbers = np.arange(600, dtype=np.float32)
    typed = helper.make_tensor("t", TensorProto.FLOAT, [600], numbers.tolist())
    halves = helper.make_tensor("h", TensorProto.FLOAT16, [600], numbers.astype(np.float16))
    model = helper.make_model(helper.make_graph([], "g", [], [], [typed, halves]))
    save_model(model, tmp_path / "m.onnx", limit=1024)
    loaded = stored(tmp_path / "m.onnx")
    assert loaded["t"].tolist() == numbers.tolist()
    assert loaded["h"].tolist() == numbers.astype(np.float16).tolist()


def test_data_that_would_lie_elsewhere_is_refused(tmp_path):
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [2], bytes(8), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    with pytest.raises(ConfigError, match=r"'../secret'; expected a path inside"):
        save_model(model, tmp_path / "m.onnx", base_dir=tmp_path)
    with pytest.raises(ConfigError, match="folder is unknown"):
        save_model(model, tmp_path / "m.onnx")


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        save_model(linear_model(square()), tmp_path / "none" / "m.onnx")

"""Models from paths and from memory, and which of their inputs are to be fed."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto

from tests.adapters.unified_ipu_onnx.written_graphs import held, info, model, node
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.reading import opsets_of, read_model, real_inputs


def product(**settings):
    return model([node("MatMul", ["x", "w"], ["y"])], ["x"], ["y"], held(w=[[1.0]]), **settings)


def test_a_path_gives_the_model_and_the_folder_of_its_data(tmp_path):
    onnx.save(product(), str(tmp_path / "m.onnx"))
    loaded = read_model(tmp_path / "m.onnx")
    assert loaded.proto == product()
    assert (loaded.base_dir, loaded.path) == (tmp_path, tmp_path / "m.onnx")


def test_a_model_in_memory_is_taken_as_it_is():
    given = product()
    assert read_model(given).proto is given


def test_a_file_that_is_missing_or_no_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.onnx"):
        read_model(tmp_path / "nothing.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(ConfigError, match=r"text\.onnx' is no ONNX model"):
        read_model(str(tmp_path / "text.onnx"))
    with pytest.raises(ConfigError, match="the model has no graph"):
        read_model(ModelProto(ir_version=8))


def test_models_that_are_too_old_or_too_new_are_refused_with_both_versions():
    with pytest.raises(CapabilityError, match="IR version 2, 3 is the oldest"):
        read_model(product(ir_version=2))
    newest = onnx.defs.onnx_opset_version()
    with pytest.raises(CapabilityError, match=f"operator set 999.*knows up to {newest}"):
        read_model(product(opset=999))


def test_inputs_that_are_initializers_are_not_fed():
    given = product(ir_version=3)
    given.graph.input.insert(0, info("w", [1, 1]))
    assert real_inputs(given.graph) == ("x",)


def test_the_default_domain_has_two_spellings():
    imports = [onnx.helper.make_opsetid("ai.onnx", 9), onnx.helper.make_opsetid("mine", 2)]
    assert opsets_of(imports) == {"": 9, "mine": 2}

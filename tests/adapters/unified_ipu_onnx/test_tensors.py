"""Tensors of a file arrive bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.tensors import to_torch, torch_dtype

TYPES = [
    np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.bool_,
    np.complex64, np.complex128,
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_raw_data_of_every_common_type_is_read(kind):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(kind)
    found = to_torch(numpy_helper.from_array(array, "t"))
    assert found.numpy().dtype == kind
    assert np.array_equal(found.numpy(), array)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TensorProto.FLOAT, [0.5, -1.0]),
        (TensorProto.DOUBLE, [1e-300, 2.0]),
        (TensorProto.INT8, [-128, 127]),
        (TensorProto.INT32, [-(2**31), 5]),
        (TensorProto.INT64, [2**62, -1]),
        (TensorProto.UINT8, [0, 255]),
        (TensorProto.BOOL, [True, False]),
        (TensorProto.FLOAT16, [0.25, 65504.0]),
        (TensorProto.BFLOAT16, [0.25, -2.0]),
        (TensorProto.COMPLEX64, [1 + 2j, -3j]),
    ],
)
def test_typed_fields_are_read_as_well_as_raw_data(kind, values):
    tensor = helper.make_tensor("t", kind, [2], values)
    assert not tensor.HasField("raw_data")
    assert to_torch(tensor).tolist() == values


@pytest.mark.case("O-X9")
def test_raw_bfloat16_is_read_as_such():
    raw = np.array([0x3E80, 0x3F00, 0x3F80, 0x4000], np.uint16).tobytes()
    found = to_torch(TensorProto(data_type=TensorProto.BFLOAT16, dims=[2, 2], raw_data=raw))
    assert found.dtype == torch.bfloat16
    assert found.tolist() == [[0.25, 0.5], [1.0, 2.0]]


@pytest.mark.skipif(not hasattr(torch, "uint16"), reason="torch before 2.3 has no such type")
def test_wide_unsigned_types_are_read_where_torch_has_them():
    array = np.array([0, 2**63 + 1], np.uint64)
    assert to_torch(numpy_helper.from_array(array)).numpy().tolist() == [0, 2**63 + 1]


def test_scalars_and_empty_tensors_keep_their_shape():
    assert to_torch(numpy_helper.from_array(np.array(3.0, np.float32))).shape == ()
    assert to_torch(numpy_helper.from_array(np.zeros((2, 0), np.float32))).shape == (2, 0)


def test_what_is_read_is_a_copy():
    tensor = numpy_helper.from_array(np.ones(2, np.float32))
    to_torch(tensor).zero_()
    assert to_torch(tensor).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.FLOAT8E4M3FN, 99])
def test_a_type_that_torch_cannot_hold_is_refused_by_name(kind):
    with pytest.raises(CapabilityError, match=r"(STRING|FLOAT8E4M3FN|type 99).*FLOAT, DOUBLE"):
        torch_dtype(kind)


def test_data_of_another_size_than_the_shape_is_an_error_with_both():
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"\0" * 8)
    with pytest.raises(ConfigError, match=r"'w' of shape \[3\] needs 3 elements, its data has 2"):
        to_torch(tensor)
    tensor.raw_data = b"\0" * 7
    with pytest.raises(ConfigError, match="7 bytes of data, no multiple of 4"):
        to_torch(tensor)


def external(location, **entries):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_external_data_are_read_from_their_offset(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.array([9, 1, 2, 9], "<f4").tobytes())
    found = to_torch(external("w.bin", offset=4, length=8), tmp_path)
    assert found.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "link"])
def test_external_data_outside_the_models_folder_are_not_read(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 8)
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="outside the folder of its model"):
        to_torch(external(location), folder)


def test_external_data_that_are_missing_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"external data of tensor 'w' cannot be read.*w\.bin"):
        to_torch(external("w.bin"), tmp_path)
    with pytest.raises(ConfigError, match="given without a folder"):
        to_torch(external("w.bin"))

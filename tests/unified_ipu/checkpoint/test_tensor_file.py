from __future__ import annotations

import json
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from unified_ipu.checkpoint.tensor_file import (
    CODES,
    FileFacts,
    StoredTensor,
    check_storable,
    read_tensors,
    write_tensors,
)
from unified_ipu.errors import CheckpointError

SHAPES = [(), (0,), (3,), (2, 0, 4), (2, 3), (1, 2, 3, 4)]
PLAIN = [name for name in CODES if name not in {"bfloat16", "complex64"}]


def random_tensor(name, dtype, shape, seed=0):
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    data = np.random.default_rng(seed).integers(0, 256, size=size, dtype=np.uint8)
    if dtype == "bool":
        data &= 1
    return StoredTensor(name, dtype, data.view(dtype).reshape(shape))


@given(
    st.lists(st.tuples(st.sampled_from([*PLAIN, "complex64"]), st.sampled_from(SHAPES)), max_size=6)
)
def test_l3_every_bit_comes_back(tmp_path_factory, forms):
    path = tmp_path_factory.mktemp("bits") / "file"
    tensors = [
        random_tensor(f"layer.{k}", dtype, shape, seed=k) for k, (dtype, shape) in enumerate(forms)
    ]
    found = read_tensors(path, write_tensors(path, tensors))
    assert set(found) == {tensor.name for tensor in tensors}
    for tensor in tensors:
        array = found[tensor.name].array
        assert array.tobytes() == tensor.array.tobytes()
        assert (array.dtype.name, array.shape) == (tensor.dtype, tensor.array.shape)


def test_the_safetensors_package_reads_what_is_written(tmp_path):
    tensors = [random_tensor(f"{dtype}.weight", dtype, (3, 5)) for dtype in PLAIN]
    write_tensors(tmp_path / "file", tensors)
    found = load_file(str(tmp_path / "file"))
    assert {name: array.tobytes() for name, array in found.items()} == {
        tensor.name: tensor.array.tobytes() for tensor in tensors
    }


def test_what_the_safetensors_package_writes_is_read(tmp_path):
    path = tmp_path / "file"
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(3, np.int64)}
    save_file(arrays, str(path))
    digest = sha256(path.read_bytes()).hexdigest()
    found = read_tensors(path, FileFacts(path.stat().st_size, digest))
    assert {name: tensor.array.tolist() for name, tensor in found.items()} == {
        "a": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "b": 3,
    }


def test_bfloat16_goes_through_float32_without_losing_a_bit(tmp_path):
    words = np.arange(1 << 16, dtype=np.uint32)
    values = (words << 16).view(np.float32)
    path = tmp_path / "file"
    facts = write_tensors(path, [StoredTensor("w", "bfloat16", values)])
    assert facts.num_bytes < 2 * (1 << 16) + 200
    with safe_open(str(path), framework="np") as file:
        assert file.get_slice("w").get_dtype() == "BF16"
    found = read_tensors(path, facts)["w"]
    assert found.dtype == "bfloat16"
    assert found.array.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (StoredTensor("w", "bfloat16", np.array([0.1], np.float32)), "bfloat16 cannot hold"),
        (StoredTensor("w", "float32", np.array([0.1])), "was read as float64"),
    ],
)
def test_a_value_that_would_be_changed_is_refused(tmp_path, tensor, said):
    with pytest.raises(CheckpointError, match=said):
        write_tensors(tmp_path / "file", [tensor])


def test_an_element_type_without_a_form_is_refused_by_name():
    with pytest.raises(CheckpointError, match="tensor 'w' has dtype float8_e4m3fn"):
        check_storable("w", "float8_e4m3fn")


def damaged(path, change):
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def cut(content):
    del content[-1]


def flip(content):
    content[-1] ^= 1


@pytest.mark.parametrize(("change", "said"), [(cut, "has 103 bytes"), (flip, "sha256")])
def test_a_changed_file_is_refused(tmp_path, change, said):
    path = tmp_path / "file"
    facts = write_tensors(path, [StoredTensor("w", "float64", np.array([1.0]))])
    size = facts.num_bytes
    damaged(path, change)
    with pytest.raises(CheckpointError, match=said.replace("103", str(size - 1))):
        read_tensors(path, facts)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        b"\xff" * 20,
        (2).to_bytes(8, "little") + b"[]",
        (3).to_bytes(8, "little") + b"{,}",
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    digest = sha256(content).hexdigest()
    with pytest.raises(CheckpointError, match="is no safetensors file"):
        read_tensors(path, FileFacts(len(content), digest))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F128", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 7]},
        {"dtype": "F64"},
        3,
    ],
)
def test_an_entry_that_does_not_fit_its_bytes_is_refused(tmp_path, entry):
    header = json.dumps({"w": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + b"\0" * 8
    path = tmp_path / "file"
    path.write_bytes(content)
    digest = sha256(content).hexdigest()
    with pytest.raises(CheckpointError, match="the entry of 'w' is wrong"):
        read_tensors(path, FileFacts(len(content), digest))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_tensors(tmp_path / "file", FileFacts(1, ""))

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from unified_ipu.adapter import Copies, MicroBatch
from unified_ipu.errors import DataError, DeviceError
from unified_ipu_torch.batches import alias, read_batch, select_rows
from unified_ipu_torch.errors import translated

CPU = torch.device("cpu")


def test_arrays_are_aliased_not_copied():
    array = np.arange(6.0).reshape(2, 3)
    batch = read_batch(MicroBatch(0, {"x": (array, [array])}, 2), CPU)
    for tensor in (batch.tree["x"][0], batch.tree["x"][1][0]):
        assert tensor.data_ptr() == array.ctypes.data


def test_read_only_arrays_are_aliased_without_a_warning():
    array = np.arange(6.0)
    array.flags.writeable = False
    assert alias(array).data_ptr() == array.ctypes.data


def test_an_alias_keeps_its_memory_alive():
    array = np.arange(100000.0)
    array.flags.writeable = False
    tensor = alias(array[::2])
    del array
    assert float(tensor.sum()) == float(np.arange(0, 100000.0, 2).sum())


def test_files_mapped_read_only_are_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(8))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tensor = alias(mapped[2:])
    tensor += 1  # would end the process if it were the mapping
    assert float(tensor.sum()) == 6.0


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0)[::-1], np.arange(6, dtype=">i4"), np.arange(6.0).reshape(2, 3)[:, ::-1]],
)
def test_layouts_torch_cannot_express_are_copied(array):
    assert alias(array).tolist() == array.tolist()


def test_text_is_refused():
    with pytest.raises(DataError, match="dtype <U1"):
        alias(np.array(["a"]))


def test_arrays_that_may_not_be_written_to_are_copied_and_counted():
    array = np.arange(6.0)
    array.flags.writeable = False
    copies = Copies()
    batch = read_batch(MicroBatch(0, (array, np.arange(6)), 6), CPU, copies)
    batch.tree[0].add_(1)
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    assert copies.counters.as_dict() == {"copied_because_read_only": 1, "bytes_copied": 48}


@pytest.mark.case("O-B4")
def test_the_bytes_of_a_file_stay_as_they_are(tmp_path):
    path = tmp_path / "x"
    np.arange(8, dtype=np.float32).tofile(path)
    before = path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for array in (np.memmap(path, np.float32, "r"), np.frombuffer(mapped, np.float32)):
            batch = read_batch(MicroBatch(0, array, 8), CPU)
            del array
            batch.tree.add_(1)
            assert batch.tree.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
            del batch
    assert path.read_bytes() == before


def test_a_leaf_that_is_no_number_is_refused_by_its_path():
    tree = {"x": np.ones(2), "name": (np.array(["a", "b"]),)}
    with pytest.raises(DataError, match=r"leaf \['name'\]\[0\] has the element type <U1"):
        read_batch(MicroBatch(0, tree, 2), CPU)


def test_padding_of_a_full_batch_is_no_padding():
    batch = read_batch(MicroBatch(0, np.ones(2), 2, sample_weight=np.ones(2, np.float32)), CPU)
    assert batch.counted is None
    assert batch.num_counted == 2


def test_rows_are_cut_in_every_leaf_that_has_them():
    tree = {"a": torch.arange(3), "b": (torch.ones(3, 2), torch.ones(()))}
    cut = select_rows(tree, np.array([True, False, True]))
    assert cut["a"].tolist() == [0, 2]
    assert cut["b"][0].shape == (2, 2)
    assert cut["b"][1].shape == ()


def test_running_out_of_memory_says_what_to_change():
    with pytest.raises(DeviceError, match="micro_batch_size"):
        with translated():
            torch.empty(1 << 50)


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match=r"^mine$"):
        with translated():
            raise RuntimeError("mine")

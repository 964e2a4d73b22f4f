"""Sources that are read in the rank's own process."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from unified_ipu.data import arrays, as_source, dataset, stream, tensorflow
from unified_ipu.errors import ConfigError, DataError

IDS = np.array([2, 0, 3])


class Pair(NamedTuple):
    left: Any
    right: Any


class Squares:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("no square for five")
        return np.full(2, index, dtype=np.float32), index * index


def test_arrays_gives_rows_of_every_leaf_in_the_tree_it_was_given():
    source = arrays({"x": np.arange(8.0).reshape(4, 2), "y": [np.arange(4), (np.arange(4) * 2,)]})
    tree = source.fetch(IDS)
    assert source.size == 4
    assert tree["x"].tolist() == [[4, 5], [0, 1], [6, 7]]
    assert tree["y"][0].tolist() == [2, 0, 3]
    assert tree["y"][1][0].tolist() == [4, 0, 6]
    assert isinstance(tree["y"], list)
    assert isinstance(tree["y"][1], tuple)


def test_several_arrays_are_a_tuple_and_named_tuples_stay_so():
    assert isinstance(arrays(np.arange(4), np.arange(4)).fetch(IDS), tuple)
    tree = arrays(Pair(np.arange(4), np.arange(4))).fetch(IDS)
    assert isinstance(tree, Pair)
    assert tree.right.tolist() == [2, 0, 3]


def test_one_array_alone_is_the_batch():
    assert arrays(np.arange(4)).fetch(IDS).tolist() == [2, 0, 3]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "complex64"])
def test_batches_are_the_callers_own_writable_contiguous_arrays(dtype):
    data = np.arange(12).reshape(4, 3).astype(dtype)
    batch = arrays(data[:, ::-1]).fetch(IDS)
    assert batch.dtype == data.dtype
    assert batch.flags.c_contiguous
    assert batch.flags.writeable
    assert batch.flags.owndata
    batch[:] = 0
    assert data.any()


@pytest.mark.case("O-B4")
def test_a_read_only_memory_map_is_copied_and_its_file_left_alone(tmp_path):
    path = tmp_path / "values"
    np.arange(8, dtype=np.float32).tofile(path)
    before = path.read_bytes()
    source = arrays(np.memmap(path, dtype=np.float32, mode="r"))
    batch = source.fetch(np.arange(8))
    batch += 1
    assert batch.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert type(batch) is np.ndarray
    assert path.read_bytes() == before


def test_big_endian_arrays_arrive_in_the_byte_order_of_the_machine():
    batch = arrays(np.arange(4, dtype=">f4")).fetch(IDS)
    assert batch.dtype.isnative
    assert batch.tolist() == [2, 0, 3]


@pytest.mark.parametrize("column", [["a", "b"], [b"a", b"b"], [{}, None]])
@pytest.mark.case("O-B5")
def test_strings_and_objects_are_refused_by_the_name_of_their_column(column):
    with pytest.raises(DataError, match=r"\['name'\].*bools and numbers only"):
        arrays({"x": np.zeros((2, 2)), "name": np.array(column)})


def test_leaves_of_different_length_are_refused_with_both_numbers():
    with pytest.raises(DataError, match=r"leaf \[0\] has 4 rows but leaf \[1\] has 3"):
        arrays(np.zeros(4), np.zeros(3))


@pytest.mark.parametrize("tree", [np.float32(1), (np.zeros(3), 5), [1, 2, 3]])
def test_a_leaf_without_rows_is_refused(tree):
    with pytest.raises(DataError, match="one row a sample on axis 0"):
        arrays(tree)


def test_nothing_at_all_is_refused():
    with pytest.raises(DataError, match="no array"):
        arrays({})


def test_dataset_stacks_arrays_and_numbers():
    vectors, squares = dataset(Squares()).fetch(IDS)
    assert vectors.tolist() == [[2, 2], [0, 0], [3, 3]]
    assert vectors.dtype == np.float32
    assert squares.tolist() == [4, 0, 9]
    assert squares.dtype == np.int64


def test_dataset_uses_collate_and_owns_what_it_returns():
    buffer = np.zeros(3)

    def collate(samples):
        buffer[:] = [square for _, square in samples]
        return {"y": buffer}

    source = dataset(Squares(), collate)
    first = source.fetch(IDS)
    source.fetch(np.array([1, 1, 1]))
    assert first["y"].tolist() == [4, 0, 9]


def test_a_failing_sample_is_named_and_the_cause_kept():
    with pytest.raises(DataError, match="sample 5 failed with ValueError: no square") as caught:
        dataset(Squares()).fetch(np.array([1, 5]))
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}], r"\['name'\].*bools and numbers"),
        ([np.zeros(2), np.zeros(3)], r"sample 0 has shape \(2,\) but of sample 1 \(3,\)"),
        ([(1, 2), (1, 2, 3)], "2 leaves but sample 1 has 3"),
        ([None, None], "bools and numbers"),
    ],
)
def test_samples_that_do_not_stack_are_refused_by_name(samples, message):
    with pytest.raises(DataError, match=message):
        dataset(samples).fetch(np.array([0, 1]))


def test_a_collate_that_returns_other_rows_is_refused():
    with pytest.raises(DataError, match=r"\(1,\) for 3 samples"):
        dataset(Squares(), lambda _: np.zeros(1)).fetch(IDS)


def test_dataset_needs_a_length():
    with pytest.raises(DataError, match="__len__"):
        dataset(iter([1, 2]))


def test_live_objects_become_sources():
    for given, size in [((np.zeros(3), np.zeros(3)), 3), (np.zeros(5), 5), (Squares(), 6)]:
        found: Any = as_source(given)
        assert found.size == size
    source = tensorflow("pipeline:train", size=4)
    assert as_source(source) is source
    endless = stream("pipeline:train")
    assert as_source(endless) is endless
    collated: Any = as_source(dataset(Squares()), lambda rows: np.ones(len(rows)))
    assert collated.fetch(IDS).tolist() == [1, 1, 1]


def test_what_cannot_be_dealt_exactly_once_is_refused_with_advice():
    with pytest.raises(ConfigError, match=r"list_iterator.*exactly once.*ui\.data\.arrays"):
        as_source(iter([1]))
    with pytest.raises(ConfigError, match=r"'pipeline:train'; .*ui\.data\.tensorflow"):
        as_source("pipeline:train")
    with pytest.raises(ConfigError, match="collate"):
        as_source(np.zeros(3), collate=list)
    with pytest.raises(ConfigError, match="collate"):
        as_source(stream("pipeline:train"), collate=list)


@pytest.mark.parametrize("function", ["pipeline", "pipeline:", ":train", "a b:c", "p:f:g"])
def test_a_pipeline_is_a_module_and_a_function(function):
    with pytest.raises(ConfigError, match="module:function"):
        tensorflow(function, size=4)
    with pytest.raises(ConfigError, match=r"stream: .*module:function"):
        stream(function)


@pytest.mark.parametrize("size", [0, -3, 2.5, True])
def test_a_pipeline_needs_a_size(size):
    with pytest.raises(ConfigError, match="size="):
        tensorflow("pipeline:train", size=size)

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.adapter import inputs_of, leaves, rows, split_batch
from unified_ipu.errors import DataError


def test_leaves_come_with_paths_that_can_be_read():
    tree = ({"mask": 1, "ids": [2, 3]}, 4)
    assert list(leaves(tree, "batch")) == [
        ("batch[0]['mask']", 1),
        ("batch[0]['ids'][0]", 2),
        ("batch[0]['ids'][1]", 3),
        ("batch[1]", 4),
    ]


def test_rows_is_the_size_all_leaves_share():
    assert rows(({"a": np.zeros((3, 2))}, np.zeros(3))) == 3


def test_leaves_of_different_length_are_named_with_both_sizes():
    with pytest.raises(DataError, match=r"batch\[0\] has 3 rows but batch\[1\] has 4"):
        rows((np.zeros(3), np.zeros(4)))


def test_a_scalar_leaf_has_no_rows():
    with pytest.raises(DataError, match=r"batch\[1\] is a float"):
        rows((np.zeros(3), 1.0))


def test_an_empty_tree_has_no_rows():
    with pytest.raises(DataError, match="no array"):
        rows({})


@pytest.mark.parametrize(
    ("batch", "parts"),
    [(("x", "y"), ("x", "y", None)), (["x", "y", "w"], ("x", "y", "w"))],
)
def test_a_pair_or_a_triple_is_taken_apart(batch, parts):
    assert split_batch(batch) == parts


@pytest.mark.parametrize("batch", [("x",), ("x", "y", "w", "z"), {"x": 1}, 5])
def test_what_is_no_pair_is_refused_with_what_to_pass(batch):
    with pytest.raises(DataError, match=r"\(x, y\) or \(x, y, sample_weight\).*objective="):
        split_batch(batch)


@pytest.mark.parametrize(
    ("batch", "x"),
    [(("x",), "x"), (("x", "y"), "x"), (["x", "y", "w"], "x"), ({"x": 1}, {"x": 1}), ("x", "x")],
)
def test_the_inputs_are_the_first_part_or_the_whole_batch(batch, x):
    assert inputs_of(batch) == x

"""Micro-batches of a call put behind each other."""

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.adapter import host_batch
from unified_ipu.errors import DataError


def test_rows_come_in_the_order_of_the_micro_batches():
    trees = [({"a": np.full((2, 3), k)}, [np.arange(2) + 10 * k]) for k in range(3)]
    joined = host_batch(trees)
    assert isinstance(joined, tuple)
    assert joined[0]["a"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert joined[1][0].tolist() == [0, 1, 10, 11, 20, 21]


@pytest.mark.parametrize(
    ("trees", "words"),
    [
        ([np.zeros((2, 3)), np.zeros((2, 4))], "shapes are static"),
        ([np.zeros(2), np.zeros(2, np.int64)], "shapes are static"),
        ([{"a": np.zeros(2)}, {"b": np.zeros(2)}], "differ in their keys"),
        ([(np.zeros(2),), (np.zeros(2), np.zeros(2))], "not all of 1 parts"),
    ],
)
def test_micro_batches_of_other_forms_are_refused(trees, words):
    with pytest.raises(DataError, match=words):
        host_batch(trees)

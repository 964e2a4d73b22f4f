"""Samples of different lengths, padded and masked."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from unified_ipu.data import dataset, pad
from unified_ipu.errors import ConfigError, DataError

WORDS = [
    {"tokens": np.arange(k, dtype=np.int64) + 1, "label": k, "points": np.ones((k, 2))}
    for k in (3, 1, 2)
]


def test_a_dict_is_padded_to_the_longest_and_gets_a_mask():
    batch = dataset(WORDS, pad({"tokens": -1, "points": 0.5})).fetch(np.arange(3))
    assert list(batch) == ["tokens", "label", "points", "mask"]
    assert batch["tokens"].tolist() == [[1, 2, 3], [1, -1, -1], [1, 2, -1]]
    assert batch["tokens"].dtype == np.int64
    assert batch["label"].tolist() == [3, 1, 2]
    assert batch["points"][1].tolist() == [[1, 1], [0.5, 0.5], [0.5, 0.5]]
    assert batch["mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert batch["mask"].dtype == np.float32


def test_one_number_pads_every_leaf_that_has_an_axis():
    batch = pad()(WORDS)
    assert batch["tokens"].shape == (3, 3)
    assert batch["points"].shape == (3, 3, 2)
    assert batch["label"].shape == (3,)


def test_tuples_lists_and_single_arrays_get_the_mask_last():
    pairs = [(np.zeros(2), 7), (np.ones(1), 8)]
    x, y, mask = pad()(pairs)
    assert x.tolist() == [[0, 0], [1, 0]]
    assert y.tolist() == [7, 8]
    assert mask.tolist() == [[1, 1], [1, 0]]
    assert isinstance(pad()(pairs), tuple)
    assert isinstance(pad()([list(pair) for pair in pairs]), list)
    x, mask = pad(9)([np.zeros(1), np.zeros(2)])
    assert x.tolist() == [[0, 9], [0, 0]]
    assert mask.tolist() == [[1, 0], [1, 1]]
    _, y, _ = pad({0: 0})([(np.zeros(2), np.ones(3)), (np.ones(1), np.ones(3))])
    assert y.shape == (2, 3)


def test_the_length_may_be_fixed_or_rounded_up():
    assert pad({"tokens": 0}, length=5)(one_leaf(3, 1))["tokens"].shape == (2, 5)
    assert pad({"tokens": 0}, multiple=8)(one_leaf(3, 9))["tokens"].shape == (2, 16)
    assert pad({"tokens": 0}, multiple=8)(one_leaf(8, 2))["tokens"].shape == (2, 8)
    assert pad({"tokens": 0})(one_leaf(0, 0))["mask"].shape == (2, 0)


def test_leaves_of_two_lengths_need_to_say_whose_mask_it_is():
    samples = [(np.zeros(2), np.zeros(3)), (np.zeros(4), np.zeros(1))]
    with pytest.raises(DataError, match=r"\[2, 4\] and \[3, 1\]; say whose the mask is"):
        pad()(samples)
    _, y, mask = pad(mask_of=1)(samples)
    assert mask.shape == y.shape
    assert mask.sum(1).tolist() == [3, 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 5))
def test_what_the_mask_shows_is_what_was_given(lengths, multiple):
    samples = [{"x": np.arange(1, length + 1)} for length in lengths]
    batch = pad({"x": 0}, multiple=multiple)(samples)
    assert batch["x"].shape[1] % multiple == 0
    assert batch["mask"].sum(1).tolist() == lengths
    for row, mask, length in zip(batch["x"], batch["mask"], lengths):
        assert row[mask > 0].tolist() == list(range(1, length + 1))
        assert not row[mask == 0].any()


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([{"x": np.zeros(2)}, {"y": np.zeros(2)}], {}, r"\['x'\] and sample 1 of it \['y'\]"),
        ([{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}], {}, r"only axis 0 may differ"),
        ([{"x": np.zeros(1)}, {"x": np.zeros(1, "f4")}], {}, r"float64 .* float32"),
        ([{"x": np.zeros(4)}], {"length": 3}, "length 4, more than length=3"),
        ([{"x": 1}], {}, r"none of the leaves \['x'\] is padded"),
        ([{"mask": np.zeros(1)}], {}, "'mask' already"),
        ([{"x": [np.zeros(1)]}], {}, r"\['x'\] is a list; expected an array"),
        ([{"x": np.array(["a"])}], {}, "bools and numbers only"),
        ([{"x": np.zeros(2)}], {"mask_of": "y"}, "mask_of='y' is none of the padded"),
    ],
)
def test_what_cannot_be_padded_is_refused_by_name(samples, options, message):
    with pytest.raises(DataError, match=message):
        pad(**options)(samples)


def test_leaves_that_are_not_named_must_have_one_shape():
    samples = [{"x": np.zeros(2), "y": np.zeros(k)} for k in (1, 2)]
    with pytest.raises(DataError, match=r"\['y'\] has the shapes \(1,\) and \(2,\) and is not"):
        pad({"x": 0})(samples)


@pytest.mark.parametrize(
    "options", [{"length": 0}, {"multiple": 0}, {"values": {"x": 0}, "mask_of": "y"}]
)
def test_arguments_that_cannot_be_right_are_refused(options):
    with pytest.raises(ConfigError, match="pad: got"):
        pad(**options)


def test_it_can_be_handed_to_data_processes():
    copied = pickle.loads(pickle.dumps(pad({"tokens": 0})))  # noqa: S301 - our own
    batch = copied(one_leaf(1, 2))
    assert batch["tokens"].tolist() == [[1, 0], [1, 1]]


def one_leaf(*lengths):
    return [{"tokens": np.ones(length, np.int64)} for length in lengths]

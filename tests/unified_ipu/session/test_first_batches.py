"""One micro-batch on every rank, and what losses of it are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_ipu.adapter import MicroBatch
from unified_ipu.errors import ConfigError
from unified_ipu.session.first_batches import Scored, check_losses, shared_micro_batch
from unified_ipu.session.mixing import Mix
from unified_ipu.testing.threads import RanksFailedError, run_ranks

MIX = Mix(("torch", "tensorflow"))


def scored(total, weight, problem=None):
    return Scored(repr(float(total)), repr(float(weight)), problem)


@pytest.mark.parametrize("second", [2.0, 2.0 * (1 + 9e-5), 2.0 * (1 - 9e-5)])
def test_losses_within_one_part_in_10000_are_the_same(second):
    assert check_losses(MIX, [scored(8.0, 4), scored(4 * second, 4)])


@pytest.mark.parametrize("second", [2.0 * (1 + 2e-4), 2.0 * (1 - 2e-4), 0.0, np.nan, np.inf])
def test_other_losses_are_an_error_with_both(second):
    with pytest.raises(ConfigError) as caught:
        check_losses(MIX, [scored(8.0, 4), scored(4 * second, 4)])
    assert "rank 0 (torch) has 2; rank 1 (tensorflow) has " in str(caught.value)


def test_losses_next_to_0_differ_by_rounding_only():
    assert check_losses(MIX, [scored(4e-9, 4), scored(8e-8, 4)])


def test_other_weights_are_an_error_with_both_although_the_means_agree():
    with pytest.raises(ConfigError) as caught:
        check_losses(MIX, [scored(24.0, 12), scored(8.0, 4)])
    assert "rank 0 (torch) counts 12; rank 1 (tensorflow) counts 4" in str(caught.value)


def test_a_batch_in_which_nothing_counts_says_nothing_yet():
    assert not check_losses(MIX, [scored(0.0, 0), scored(0.0, 0)])
    assert not check_losses(MIX, [scored(np.nan, 4), scored(np.nan, 4)])
    with pytest.raises(ConfigError, match="has nan; rank 1"):
        check_losses(MIX, [scored(0.0, 0), scored(8.0, 4)])


def test_a_rank_that_failed_is_named_with_its_error():
    with pytest.raises(ConfigError) as caught:
        check_losses(MIX, [scored(8.0, 4), scored(np.nan, np.nan, "ValueError: bad shape")])
    assert str(caught.value).startswith("rank 1 (tensorflow) cannot evaluate the first micro-batch")
    assert "ValueError: bad shape" in str(caught.value)


X = np.arange(12, dtype=np.float32).reshape(3, 4)
TREE: Any = {"x": (X, [X[:, 0] > 4.0]), "mask": np.array([1, 0, 1], np.int8)}


def test_the_lowest_rank_with_rows_shows_its_own_to_all():
    weight = np.array([1.0, 1.0, 0.0], np.float32)

    def body(world, communicator):
        mine = None
        if world.rank:
            factor = world.rank
            tree = {**TREE, "x": (factor * TREE["x"][0], TREE["x"][1])}
            mine = MicroBatch(world.rank, tree, 3, sample_weight=weight, ids=np.arange(3))
        return shared_micro_batch(mine, communicator)

    for micro in run_ranks(3, body):
        assert (micro.index, micro.rows) == (1, 3)
        assert list(micro.tree) == ["x", "mask"]
        assert isinstance(micro.tree["x"], tuple)
        assert isinstance(micro.tree["x"][1], list)
        assert np.array_equal(micro.tree["x"][0], X)
        assert np.array_equal(micro.tree["x"][1][0], X[:, 0] > 4.0)
        assert micro.tree["mask"].dtype == np.int8
        assert np.array_equal(micro.sample_weight, weight)


def test_the_rows_are_copies_that_may_be_written():
    kept = X.copy()
    kept.flags.writeable = False

    def body(world, communicator):
        mine = MicroBatch(0, (kept, kept.astype(">f8")), 3) if world.rank == 0 else None
        return shared_micro_batch(mine, communicator)

    for micro in run_ranks(2, body):
        assert micro.sample_weight is None
        for leaf in micro.tree:
            assert np.array_equal(leaf, X)
            leaf[...] = 0.0
    assert kept[2, 3] == 11.0


def test_without_rows_anywhere_there_is_none():
    assert run_ranks(2, lambda world, communicator: shared_micro_batch(None, communicator)) == [
        None,
        None,
    ]


def test_rows_of_objects_are_refused_by_their_place():
    def body(world, communicator):
        rows = np.array(["a", None, "b"], dtype=object)
        return shared_micro_batch(MicroBatch(0, (X, {"text": rows}), 3), communicator)

    with pytest.raises(RanksFailedError) as caught:
        run_ranks(2, body)
    assert "batch[1]['text'] holds ndarray of dtype object" in str(caught.value.errors[0])


def test_in_half_precision_losses_may_lie_further_apart_and_weights_may_not():
    assert check_losses(MIX, [scored(8.0, 4), scored(8.2, 4)], relative=0.05)
    with pytest.raises(ConfigError, match="losses of one micro-batch differ"):
        check_losses(MIX, [scored(8.0, 4), scored(8.5, 4)], relative=0.05)
    with pytest.raises(ConfigError, match="means over different units"):
        check_losses(MIX, [scored(8.0, 4), scored(8.02, 4.01)], relative=0.05)

"""Loaders that evaluate: each sample once, whatever the world."""

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.comms import connect
from unified_ipu.data import arrays
from unified_ipu.errors import ConfigError
from unified_ipu.plan import BatchPlan


@pytest.fixture
def alone():
    return connect(rank=0, size=1, job="")


def table(size):
    return arrays(np.arange(size), np.arange(size) * 10)


@pytest.mark.case("O-S1")
def test_l6_evaluation_counts_each_sample_once(run_ranks, make_loader):
    def rank(communicator):
        loader = make_loader(communicator, table(10), BatchPlan(4, 1, 4), train=False)
        right = sum(int((m.ids < 2).sum()) for m in loader)
        seen = [m.ids.tolist() for m in loader]
        return right, seen, loader.certificate().ok

    results = run_ranks(4, rank)
    assert sum(right for right, _, _ in results) / 10 == 0.2
    assert [seen for _, seen, _ in results] == [
        [[0], [4], [8]],
        [[1], [5], [9]],
        [[2], [6]],
        [[3], [7]],
    ]
    assert all(ok for _, _, ok in results)


@pytest.mark.case("O-S3")
def test_l6_the_last_round_has_no_duplicate(run_ranks, make_loader):
    def rank(communicator):
        loader = make_loader(communicator, table(24), BatchPlan(5, 1, 5), train=False)
        return [m.ids.tolist()[0] for m in loader], len(loader), loader.certificate().delivered

    results = run_ranks(5, rank)
    assert [ids for ids, _, _ in results] == [list(range(r, 24, 5)) for r in range(5)]
    assert [count for _, count, _ in results] == [5, 5, 5, 5, 4]
    assert {delivered for _, _, delivered in results} == {24}


@pytest.mark.case("O-S4")
def test_l6_uneven_evaluation_deals_whole_micro_batches_in_turn(run_ranks, make_loader):
    def rank(communicator):
        loader = make_loader(communicator, table(7), BatchPlan(8, 2, 3), train=False)
        return [(m.index, m.tree[0].tolist()) for m in loader]

    results = run_ranks(3, rank)
    assert results == [[(0, [0, 1]), (3, [6])], [(1, [2, 3])], [(2, [4, 5])]]


def test_l6_evaluation_has_its_own_micro_batch_size_and_no_position(alone, make_loader):
    loader = make_loader(alone, table(7), BatchPlan(4, 2), train=False, micro_batch_size=5)
    for _ in range(2):
        assert [m.rows for m in loader] == [5, 2]
        assert (loader.epoch, loader.position) == (0, 0)
    with pytest.raises(ConfigError, match="no position"):
        loader.seek(0, 0)


def test_broken_off_evaluation_says_so_and_starts_again(alone, make_loader):
    loader = make_loader(alone, table(7), BatchPlan(4, 2), train=False)
    next(iter(loader))
    assert str(loader.certificate()) == "2 of 7 samples, each once, not finished"
    assert [m.ids.tolist() for m in loader] == [[0, 1], [2, 3], [4, 5], [6]]
    assert loader.certificate().ok

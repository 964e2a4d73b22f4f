"""The order of an epoch."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from unified_ipu.data.order import Order
from unified_ipu.errors import ConfigError


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(-5, 2**80), epoch=st.integers(0, 10**9))
def test_l2_every_epoch_is_a_permutation_and_the_inverse_finds_the_positions(size, seed, epoch):
    order = Order(size, seed=seed, epoch=epoch)
    ids = order.slice(0, size)
    assert ids.dtype == np.int64
    assert sorted(ids.tolist()) == list(range(size))
    assert order.positions(ids).tolist() == list(range(size))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (10, [6, 0, 3, 4, 2, 7, 9, 5]),
        (1000, [110, 94, 873, 897, 401, 443, 663, 956]),
        (10**6, [982611, 852825, 232769, 778942, 674163, 785056, 113272, 833207]),
        (
            10**12,
            [
                *[452810257954, 786683601370, 289177210751, 294720691204],
                *[407288048535, 789184414514, 204536493129, 515584537011],
            ],
        ),
    ],
)
def test_l2_the_order_is_the_same_on_every_numpy_and_for_ever(size, expected):
    assert Order(size).slice(0, 8).tolist() == expected


@pytest.mark.parametrize("size", [1024, 1025, 2**16, 10**5 + 3])
def test_both_regimes_are_bijections_at_their_borders(size):
    ids = Order(size, seed=1).slice(0, size)
    assert np.array_equal(np.sort(ids), np.arange(size))


@pytest.mark.parametrize("size", [700, 10**5, 2**30, 10**12])
def test_positions_may_be_asked_in_any_pieces_and_order(size):
    order = Order(size, seed=9, epoch=2)
    whole = order.slice(0, 700)
    assert [int(order.slice(k, k + 1)[0]) for k in range(0, 700, 97)] == whole[::97].tolist()
    assert order.ids(np.arange(699, -1, -1)).tolist() == whole[::-1].tolist()


def test_blocks_longer_than_the_scratch_agree_with_short_ones():
    order = Order(10**9 + 7, seed=4)
    long = order.slice(5, 20005)
    short = np.concatenate([order.slice(k, k + 100) for k in range(5, 20005, 100)])
    assert np.array_equal(long, short)


@pytest.mark.case("O-S7")
def test_l2_epochs_differ_and_a_new_run_repeats_them():
    first, second = (Order(10, seed=0, epoch=epoch).slice(0, 10).tolist() for epoch in (0, 1))
    assert first != second
    assert Order(10, seed=0, epoch=0).slice(0, 10).tolist() == first
    assert sorted(first) == sorted(second) == list(range(10))


def test_seed_size_and_epoch_do_not_run_into_each_other():
    seen = {tuple(Order(2000, seed=s, epoch=e).slice(0, 9)) for s in range(12) for e in range(12)}
    assert len(seen) == 144


def test_without_shuffle_the_order_is_the_identity():
    order = Order(10**12, shuffle=False)
    assert order.slice(10**12 - 3, 10**12).tolist() == [10**12 - 3, 10**12 - 2, 10**12 - 1]
    assert order.positions(np.array([7])).tolist() == [7]


def test_small_orders_reach_all_permutations_evenly():
    counts = dict.fromkeys(permutations(range(4)), 0)
    for seed in range(2400):
        counts[tuple(Order(4, seed=seed).slice(0, 4).tolist())] += 1
    chi2 = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi2 < 50  # 23 degrees of freedom: above 49.7 with probability 0.001


def test_neighbours_of_large_orders_are_independent():
    bins = np.zeros((8, 8))
    size = 10**6
    for seed in range(4):
        left = Order(size, seed=seed).slice(0, 20001) * 8 // size
        np.add.at(bins, (left[:-1], left[1:]), 1)
    expected = 4 * 20000 / 64
    assert ((bins - expected) ** 2 / expected).sum() < 104  # 63 degrees of freedom, p = 0.001


def test_the_state_is_small_whatever_the_size():
    order = Order(10**12)
    assert order._table is None
    assert len(order._keys) == 8
    table = Order(1024)._table
    assert table is not None
    assert table.nbytes <= 8192


@pytest.mark.parametrize("size", [0, -1, 2**62])
def test_impossible_sizes_are_refused_with_the_number(size):
    with pytest.raises(ConfigError, match=str(size)):
        Order(size)


def test_positions_outside_of_the_epoch_are_refused():
    with pytest.raises(ConfigError, match=r"from 0 to 5000 .* < 5000"):
        Order(5000).slice(0, 5001)
    with pytest.raises(ConfigError, match="-1"):
        Order(5).ids(np.array([-1]))

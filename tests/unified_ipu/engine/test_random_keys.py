from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from unified_ipu.engine.random_keys import EVALUATION, TRAINING, micro_batch_key


def _key(seed=0, program=0, kind=TRAINING, update=0, micro_batch=0):
    return micro_batch_key(seed, program=program, kind=kind, update=update, micro_batch=micro_batch)


def test_l3_keys_never_change_between_versions():
    assert _key() == 7287067585708822873
    assert _key(seed=40, program=1, kind=EVALUATION, update=7, micro_batch=3) == 1384545103108394821


def test_l3_keys_differ_in_every_part():
    axes = itertools.product((0, 1, 2**64, 2**64 + 1), (0, 1), (0, 1), range(20), range(20))
    keys = [
        _key(seed=seed, program=program, kind=kind, update=update, micro_batch=micro)
        for seed, program, kind, update, micro in axes
    ]
    assert len(set(keys)) == len(keys)


@given(st.integers(0, 2**80), st.integers(0, 2**40), st.integers(0, 2**20))
def test_a_key_fits_every_framework_seed(seed, update, micro):
    assert 0 <= _key(seed=seed, update=update, micro_batch=micro) < 2**63


def test_the_bits_of_neighbouring_keys_are_balanced():
    keys = [_key(update=update, micro_batch=micro) for update in range(50) for micro in range(50)]
    for bit in range(63):
        ones = sum(key >> bit & 1 for key in keys)
        assert abs(ones - 1250) < 5 * 25  # five standard deviations of 2500 fair coins

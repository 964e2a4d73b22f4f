from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from unified_ipu.session.own_buffers import _rounded


@given(st.floats(width=32, allow_nan=False))
def test_rounding_to_bfloat16_takes_the_nearest_value(value):
    array = np.array([value], np.float32)
    got = _rounded(array)
    word = int(array.view(np.uint32)[0])
    below = np.array([word & 0xFFFF0000], np.uint32).view(np.float32)[0]
    above = np.array([min((word & 0xFFFF0000) + 0x10000, 0xFFFFFFFF)], np.uint32)
    above = above.view(np.float32)[0]
    assert int(got.view(np.uint32)[0]) & 0xFFFF == 0
    if np.isfinite([below, above]).all():
        distances = [abs(float(value) - float(one)) for one in (below, above)]
        assert abs(float(value) - float(got[0])) == min(distances)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, 1.0), (1.00390625, 1.0), (1.01171875, 1.015625), (-3.1415927, -3.140625), (0.0, 0.0)],
)
def test_known_values_are_rounded_with_ties_to_even(value, expected):
    assert _rounded(np.array([value], np.float32))[0] == expected


def test_what_is_not_a_number_stays_so():
    assert np.isnan(_rounded(np.array([[np.nan]], np.float32))).tolist() == [[True]]

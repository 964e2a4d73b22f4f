"""Numpy kernels against float64, and halves against exact rounding."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

from unified_ipu.comms import Kernels, NumpyKernels

KERNELS = NumpyKernels()
DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(autouse=True)
def as_reducers_call_them():
    with np.errstate(all="ignore"):
        yield


def to_float(buffer):
    """Values of a buffer as float64; uint16 holds the bits of bfloat16."""
    if buffer.dtype == np.uint16:
        return (buffer.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return buffer.astype(np.float64)


def to_buffer(values, dtype):
    buffer = KERNELS.allocate(len(values), dtype)
    KERNELS.cast(np.asarray(values, np.float32), buffer)
    return buffer


def nearest_bfloat16(value):
    """Round to 8 significant bits, ties to even, by arithmetic."""
    if value == 0 or not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(value)
    rounded = round(mantissa * 256)  # Python rounds ties to even
    return math.ldexp(rounded, exponent - 8)


def test_numpy_kernels_are_kernels():
    assert isinstance(KERNELS, Kernels)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 5000])
def test_a_buffer_is_zero_and_aligned(dtype, length):
    buffer = KERNELS.allocate(length, dtype)
    assert buffer.shape == (length,)
    assert not buffer.any()
    assert not length or buffer.__array_interface__["data"][0] % 64 == 0
    buffer.fill(1)
    KERNELS.zero(buffer)
    assert not buffer.any()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=8))
def test_bfloat16_is_the_nearest_value(numbers):
    numbers = [number for number in numbers if number == 0 or 1e-37 < abs(number) < 3e38]
    got = to_float(to_buffer(numbers, "bfloat16")).tolist()
    assert got == [nearest_bfloat16(number) for number in numbers]


def test_bfloat16_keeps_what_is_not_finite():
    got = to_float(to_buffer([np.inf, -np.inf, np.nan, 0.0], "bfloat16"))
    assert got[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(got[2])
    assert got[3] == 0.0
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(to_float(to_buffer(signalling, "bfloat16"))[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_and_scale_round_once(dtype):
    left, right = to_buffer([1.0, 2.5, -3.0], dtype), to_buffer([0.5, 2.5, 8.0], dtype)
    out = KERNELS.allocate(3, dtype)
    KERNELS.add(left, right, out)
    assert to_float(out).tolist() == [1.5, 5.0, 5.0]
    KERNELS.scale(out, 0.5, out)
    assert to_float(out).tolist() == [0.75, 2.5, 2.5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 1000, 1024, 1025, 9999])
def test_a_squared_norm_is_that_of_float64(dtype, length):
    values = np.random.default_rng(length).normal(size=length)
    buffer = to_buffer(values, dtype)
    exact = float((to_float(buffer) ** 2).sum())
    assert KERNELS.squared_norm(buffer) == pytest.approx(exact, rel=5e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 1500, 1999])
def test_one_bad_element_shows_in_norm_and_count(dtype, bad, place):
    values = np.ones(2000)
    values[place] = bad
    buffer = to_buffer(values, dtype)
    assert not math.isfinite(KERNELS.squared_norm(buffer))
    assert KERNELS.count_non_finite(buffer) == 1


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 3e38), ("float32", 1e-40), ("float64", 1e-100)]
)
def test_a_norm_of_very_large_or_small_values_is_right(dtype, value):
    buffer = np.full(3000, value, dtype)
    exact = 3000 * float(buffer[0]) ** 2
    assert KERNELS.squared_norm(buffer) == pytest.approx(exact, rel=1e-5)


def test_a_norm_too_large_for_float64_stays_finite():
    assert KERNELS.squared_norm(np.full(3, 1e300)) == sys.float_info.max


def test_a_complex_norm_is_real():
    buffer = np.array([3 + 4j, 1j], np.complex64)
    assert KERNELS.squared_norm(buffer) == 26.0
    assert KERNELS.count_non_finite(np.array([np.nan * 1j, 1])) == 1

"""TensorFlow's conversions of half precision are numpy's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.comms import NumpyKernels
from unified_ipu_tensorflow.half_kernels import HalfKernels

RANDOM = np.random.default_rng(3)
ODD = [0.0, -0.0, np.inf, -np.inf, 65504.0, 65519.0, 65520.0, 3.4e38, 1e-8, 5.96e-8, 2.0**-126]
TIES = [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11]


def buffer(values, dtype):
    made = NumpyKernels().allocate(len(values), "float32")
    made[...] = values
    if dtype == "float32":
        return made
    half = NumpyKernels().allocate(len(values), dtype)
    with np.errstate(over="ignore"):
        NumpyKernels().cast(made, half)
    return half


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_both_ways_give_numpys_bits(dtype):
    drawn = RANDOM.normal(size=5000) * 10.0 ** RANDOM.integers(-9, 6, 5000)
    values = np.array([*ODD, *TIES, *drawn], np.float32)
    wanted, found = buffer(values, dtype), NumpyKernels().allocate(len(values), dtype)
    HalfKernels().cast(buffer(values, "float32"), found)
    assert found.tobytes() == wanted.tobytes()
    back, expected = buffer(values, "float32"), buffer(values, "float32")
    HalfKernels().cast(found, back)
    NumpyKernels().cast(wanted, expected)
    assert back.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_nan_stays_one_and_other_types_are_numpys(dtype):
    half, wide = NumpyKernels().allocate(2, dtype), NumpyKernels().allocate(2, "float32")
    kernels = HalfKernels()
    kernels.cast(np.array([np.nan, 1.0], np.float32), half)
    assert kernels.count_non_finite(half) == 1
    kernels.cast(half, wide)
    assert np.isnan(wide).tolist() == [True, False]
    double = NumpyKernels().allocate(2, "float64")
    kernels.cast(wide, double)
    assert double[1] == 1.0

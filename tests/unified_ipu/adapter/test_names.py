"""What ``names=`` says: names, axes, and every way to get them wrong."""

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.adapter import CanonicalTensor, TensorSpec, canonical_tensors
from unified_ipu.errors import ConfigError

SPECS = [
    TensorSpec("conv/kernel", (3, 5, 2, 4), "float32"),
    TensorSpec("fc/kernel", (3, 7), "float32"),
    TensorSpec("fc/bias", (7,), "float32"),
    TensorSpec("bn/mean", (4,), "float32", role="buffer", trainable=False),
    TensorSpec("fc/kernel/exp_avg", (3, 7), "float32", role="slot", trainable=False),
]


def test_axes_are_read_from_the_native_ones_to_the_canonical_ones():
    found = canonical_tensors(
        {"conv/kernel": ["conv.weight", "HWIO->OIHW"], "fc/kernel": ("fc.weight", "IO -> OI")},
        SPECS,
    )
    assert found == {
        "conv/kernel": CanonicalTensor("conv.weight", (3, 2, 0, 1)),
        "fc/kernel": CanonicalTensor("fc.weight", (1, 0)),
        "fc/bias": CanonicalTensor("fc/bias"),
        "bn/mean": CanonicalTensor("bn/mean"),
    }
    # The kernel [H, W, I, O] of 3 x 5, from 2 to 4 features, becomes [O, I, H, W].
    assert found["conv/kernel"].shape((3, 5, 2, 4)) == (4, 2, 3, 5)
    assert found["fc/bias"].shape((7,)) == (7,)


def test_the_inverse_leads_back():
    native = np.arange(120).reshape(3, 5, 2, 4)
    entry = CanonicalTensor("x", (3, 2, 0, 1))
    canonical = native.transpose(entry.permutation)
    assert canonical[1, 0, 2, 4] == native[2, 4, 0, 1]
    assert np.array_equal(canonical.transpose(entry.inverse), native)
    assert CanonicalTensor("x").inverse is None


def test_axes_that_stay_are_no_permutation():
    found = canonical_tensors({"fc/kernel": ["w", "OI->OI"]}, SPECS)
    assert found["fc/kernel"] == CanonicalTensor("w", None)


def test_two_tensors_may_change_names():
    found = canonical_tensors({"fc/kernel": "fc/bias", "fc/bias": "fc/kernel"}, SPECS)
    assert (found["fc/kernel"].name, found["fc/bias"].name) == ("fc/bias", "fc/kernel")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"fc/kernal": "w"}, "'fc/kernal', which is no tensor of this model; did you mean 'fc/ker"),
        ({"x": "w"}, "it has 'conv/kernel', 'fc/kernel', 'fc/bias', 'bn/mean'"),
        ({"fc/kernel/exp_avg": "w"}, "no tensor of this model"),
        ({"fc/kernel": "fc/bias"}, "'fc/bias' to 2 tensors, 'fc/kernel', 'fc/bias'"),
        ({"fc/kernel": "w", "fc/bias": "w"}, "'w' to 2 tensors"),
        ({"fc/kernel": ["w", "HWIO->OIHW"]}, r"are 4; the tensor has 2, of shape \[3, 7\]"),
        ({"fc/bias": ["b", "IO->OI"]}, r"are 2; the tensor has 1, of shape \[7\]"),
        ({"fc/kernel": ["w", "IO->OO"]}, "same letters on both sides, each once"),
        ({"fc/kernel": ["w", "II->II"]}, "same letters on both sides, each once"),
        ({"fc/kernel": ["w", "IO"]}, "native axes first"),
        ({"fc/kernel": ["w", ""]}, "native axes first"),
        ({"fc/kernel": ["w", "10->01"]}, "native axes first"),
        ({"fc/kernel": ["w"]}, r"expected a canonical name, or \[canonical name, axes\]"),
        ({"fc/kernel": ["w", (1, 0)]}, r"expected a canonical name, or \[canonical name, axes\]"),
        ({"fc/kernel": ""}, "expected a canonical name"),
        ({"fc/kernel": 3}, "expected a canonical name"),
        ([("fc/kernel", "w")], "expected a mapping"),
    ],
)
def test_what_does_not_fit_is_refused(names, message):
    with pytest.raises(ConfigError, match=message):
        canonical_tensors(names, SPECS)

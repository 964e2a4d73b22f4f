"""Weights over the ranks: equal bits with one adapter, equal to rounding with several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_ipu.adapter import TensorSpec
from unified_ipu.errors import NumericsError
from unified_ipu.session.mixing import Mix
from unified_ipu.session.same_weights import check_same_weights
from unified_ipu.testing.threads import run_ranks

ONE = Mix(("torch", "torch", "torch"))
TWO = Mix(("torch", "tensorflow", "torch"))


class Tensors:
    """An executor that only has tensors."""

    def __init__(self, **tensors):
        self.tensors_by_name = tensors

    def tensors(self):
        return [
            *(TensorSpec(n, v.shape, v.dtype.name) for n, v in self.tensors_by_name.items()),
            TensorSpec("tie", (3,), "float32", tied_to="w"),
            TensorSpec("mean", (3,), "float32", role="buffer", trainable=False),
            TensorSpec("w/exp_avg", (3,), "float32", role="slot", trainable=False),
        ]

    def read(self, names):
        return {name: self.tensors_by_name[name] for name in names}


def messages(mix, make):
    """What each of three ranks raised, or None; ``make(rank)`` gives its tensors."""

    def body(world, communicator):
        try:
            executor: Any = Tensors(**make(world.rank))
            check_same_weights(executor, communicator, mix)
        except NumericsError as error:
            return str(error)
        return None

    return run_ranks(3, body)


def weights(*, dtype="float32", factor=1.0, offset=0.0):
    w = (np.array([[1.0, -2.0], [3.0, 4.0]]) * factor).astype(dtype)
    return {"w": w, "b": (np.zeros(2) + offset).astype(dtype)}


@pytest.mark.parametrize("mix", [ONE, TWO])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_weights_pass(mix, dtype):
    assert messages(mix, lambda rank: weights(dtype=dtype)) == [None] * 3


def test_with_one_adapter_a_single_bit_is_found_on_all_ranks():
    def make(rank):
        found = weights()
        if rank == 2:
            found["w"][1, 0] = np.nextafter(np.float32(3.0), np.float32(4.0))
        return found

    for text in messages(ONE, make):
        assert text.startswith("the weights of rank 2 are not those of rank 0 any more, in w;")


def test_with_one_adapter_values_that_are_no_numbers_are_bits_too():
    assert messages(ONE, lambda rank: {"w": np.full(3, np.nan)}) == [None] * 3
    assert all(messages(ONE, lambda rank: {"w": np.zeros(3) * (-1.0 if rank else 1.0)}))


@pytest.mark.parametrize(
    ("dtype", "small", "large"), [("float32", 5e-5, 2e-4), ("float64", 5e-13, 2e-12)]
)
def test_with_several_adapters_rounding_passes_and_more_is_an_error_on_all(dtype, small, large):
    def drifted(by):
        return lambda rank: weights(dtype=dtype, factor=1.0 + (by if rank == 1 else 0.0))

    assert messages(TWO, drifted(small)) == [None] * 3
    for text in messages(TWO, drifted(large)):
        assert text.startswith(
            "the weights of rank 1 (tensorflow) have left those of rank 0 (torch)"
        )
        assert ": w by 2.0e-" in text
        assert "b by" not in text


def test_with_several_adapters_a_tensor_of_rounding_errors_is_compared_absolutely():
    assert messages(TWO, lambda rank: weights(offset=rank * 4e-8)) == [None] * 3
    assert all(messages(TWO, lambda rank: weights(offset=rank * 4e-7)))


def test_with_several_adapters_what_is_not_finite_is_an_error():
    texts = messages(TWO, lambda rank: weights(offset=np.nan if rank == 2 else 0.0))
    assert all("rank 2 (torch)" in text for text in texts)


def test_one_rank_has_nothing_to_compare():
    def body(world, communicator):
        executor: Any = Tensors()
        check_same_weights(executor, communicator, Mix(("torch",)))
        return True

    assert run_ranks(1, body) == [True]

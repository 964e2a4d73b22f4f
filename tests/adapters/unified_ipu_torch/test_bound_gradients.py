"""Gradients in the reducer's buffers: large ones are there as soon as backward has made them."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
import torch

from unified_ipu.adapter import Slot
from unified_ipu_torch import bound_gradients
from unified_ipu_torch.bound_gradients import BoundGradients

has_hooks = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A product of two weights, 3 and 5, of which the second counts as large."""
    monkeypatch.setattr(bound_gradients, "LARGE_BYTES", 16)
    first = torch.nn.Parameter(torch.tensor([3.0]))
    second = torch.nn.Parameter(torch.full((4,), 5.0))
    buffer = np.zeros(32, np.float32)
    slots = [Slot("first", 0, 0, (1,)), Slot("second", 0, 16, (4,))]
    gradients = BoundGradients([first, second], slots, [buffer])
    yield first, second, buffer, gradients
    gradients.close()


def backward(gradients: BoundGradients, value: torch.Tensor) -> None:
    gradients.prepare()
    value.backward()
    gradients.collect()


def test_micro_batches_are_summed_in_the_buffer(bound):
    first, second, buffer, gradients = bound
    for _ in range(2):  # updates
        gradients.begin()
        for x in (2.0, 7.0):
            backward(gradients, (x * first * second).sum())
        assert gradients.finish() == [True, True]
        # d/d first: 4 values of 5, times 2 and 7; d/d second: 3 times 2 and 7.
        assert buffer[0] == 180.0
        assert buffer[16:20].tolist() == [27.0] * 4


@pytest.mark.skipif(not has_hooks, reason="torch before 2.1 has no such hook")
def test_a_large_gradient_is_in_the_buffer_and_let_go_before_backward_ends(bound):
    first, second, buffer, gradients = bound
    seen: List[Any] = []
    inner = first * 2.0
    # Runs when backward has come from the result to `inner`, and has done `second`.
    inner.register_hook(lambda _: seen.append((buffer[16:20].tolist(), second.grad.data_ptr())))
    gradients.begin()
    backward(gradients, second.sum() * 4.0 + inner.sum())
    assert seen == [([4.0] * 4, buffer[16:].ctypes.data)]


def test_backward_of_others_over_the_same_weights_is_left_to_them(bound):
    _, second, buffer, gradients = bound
    gradients.begin()
    second.sum().backward()
    assert second.grad.data_ptr() != buffer[16:].ctypes.data
    assert buffer.tolist() == [0.0] * 32
    assert gradients.finish() == [False, False]


def test_nothing_of_ours_stays_on_the_weights(bound):
    _, second, buffer, gradients = bound
    gradients.begin()
    gradients.close()
    gradients.prepare()
    second.sum().backward()
    assert buffer.tolist() == [0.0] * 32

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import Slot
from unified_ipu_tensorflow.gradients import BoundGradients, OwnGradients, alias

pytestmark = pytest.mark.timeout(120)


def line_aligned(size, dtype="float64", *, shift=0):
    """A numpy array that starts on a 64-byte line, or ``shift`` bytes behind one."""
    raw = np.zeros(size * 8 + 192, np.uint8)
    start = -raw.ctypes.data % 64 + shift
    return raw[start : start + size * np.dtype(dtype).itemsize].view(dtype)


def bound():
    buffer = line_aligned(32)
    buffer[...] = 7.0
    slots = [Slot("a", 0, 0, (2, 3)), Slot("b", 0, 8, ()), Slot("c", 0, 16, (4, 1), (1, 0))]
    return BoundGradients(slots, [buffer]), buffer


A = np.arange(6.0).reshape(2, 3)
C = np.arange(4.0).reshape(4, 1)  # in the layout of the bucket; the variable is [1, 4]


def test_sums_of_micro_batches_lie_in_the_buckets():
    gradients, buffer = bound()
    for _ in range(2):  # the second update starts anew
        gradients.begin()
        gradients.add([tf.constant(A), None, tf.constant(C)])
        gradients.add([tf.constant(2 * A), tf.constant(5.0, tf.float64), None])
        assert gradients.finish() == [True, True, True]
        assert np.array_equal(buffer[:6], 3 * A.ravel())
        assert buffer[8] == 5.0
        assert np.array_equal(buffer[16:20], C.ravel())
        assert not buffer[20:].any()
        assert not buffer[6:8].any()


def test_what_no_micro_batch_used_counts_as_zero_and_is_flagged():
    gradients, buffer = bound()
    gradients.begin()
    gradients.add([tf.constant(A), tf.constant(1.0, tf.float64), tf.constant(C)])
    gradients.begin()
    gradients.add([tf.constant(A), None, None])
    assert gradients.finish() == [True, False, False]
    assert buffer[8] == 0.0
    assert not buffer[16:20].any()


def test_the_optimizer_sees_what_the_reducer_wrote_in_its_own_layout():
    gradients, buffer = bound()
    for value in (1.0, 2.0):
        buffer[...] = value * np.arange(32)
        received: Any = gradients.receive()
        a, b, c = received
        assert np.array_equal(a.numpy(), value * np.arange(6.0).reshape(2, 3))
        assert float(b) == value * 8.0
        assert np.array_equal(c.numpy(), value * np.arange(16.0, 20.0).reshape(1, 4))


def test_an_alias_shows_later_writes_and_leaves_the_content():
    view = line_aligned(4)
    view[...] = [1.0, 2.0, 3.0, 4.0]
    tensor = alias(view)
    assert tensor is not None  # so that nothing is copied on the way back
    assert view.tolist() == [1.0, 2.0, 3.0, 4.0]
    view[1] = 9.0
    assert (tensor + 0.0).numpy().tolist() == [1.0, 9.0, 3.0, 4.0]


def test_memory_beside_a_line_is_not_aliased_and_still_right():
    buffer = line_aligned(16, shift=8)
    assert alias(buffer[:4]) is None
    gradients = BoundGradients([Slot("a", 0, 0, (4,))], [buffer])
    buffer[:4] = [1.0, 2.0, 3.0, 4.0]
    tensor: Any = gradients.receive()[0]
    assert (tensor * 2.0).numpy().tolist() == [2.0, 4.0, 6.0, 8.0]


def test_an_empty_tensor_is_not_aliased():
    assert alias(line_aligned(8)[:0]) is None


def test_own_gradients_are_summed_and_flagged():
    gradients = OwnGradients(3)
    gradients.begin()
    gradients.add([tf.constant(A), None, None])
    gradients.add([tf.constant(A), tf.constant([2.0]), None])
    assert gradients.finish() == [True, True, False]
    received: Any = gradients.receive()
    first, second, third = received
    assert np.array_equal(first.numpy(), 2 * A)
    assert second.numpy().tolist() == [2.0]
    assert third is None
    assert gradients.squared_norm() == pytest.approx(4.0 * (A**2).sum() + 4.0, rel=1e-15)
    assert gradients.non_finite() == []
    gradients.begin()
    assert gradients.finish() == [False, False, False]
    assert gradients.squared_norm() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_is_not_finite_exactly_if_an_element_is_not(bad):
    gradients = OwnGradients(3)
    gradients.add([tf.constant([1.0]), tf.constant([1.0, bad]), tf.constant([2.0])])
    assert not math.isfinite(gradients.squared_norm())
    assert gradients.non_finite() == [1]


def test_squares_beyond_float32_are_summed_in_float64():
    gradients = OwnGradients(1)
    gradients.add([tf.constant([3e30, 4e30], tf.float32)])
    assert gradients.squared_norm() == pytest.approx(25e60, rel=1e-6)
    gradients.begin()
    gradients.add([tf.constant([1e200], tf.float64)])
    assert math.isfinite(gradients.squared_norm())


def test_after_closing_nothing_points_into_the_buckets():
    gradients, _ = bound()
    gradients.close()
    assert gradients.receive() == []

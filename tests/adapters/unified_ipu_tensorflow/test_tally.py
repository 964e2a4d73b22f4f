from __future__ import annotations

import math

import pytest
import tensorflow as tf

from unified_ipu_tensorflow.tally import Counting

pytestmark = pytest.mark.timeout(120)


def numbers(*values):
    return tf.constant(values, tf.float64)


def test_micro_batches_are_added_up():
    counting = Counting()
    counting.add(numbers(3.0, 2.0, 1.0, 2.0), ("a",))
    counting.add(numbers(5.0, 1.0, 4.0, 4.0, 6.0, 1.0), ("a", "b"))
    found = counting.read([True, False])
    assert (found.loss_sum, found.weight) == (8.0, 3.0)
    assert found.metrics == {"a": (5.0, 6.0), "b": (6.0, 1.0)}
    assert found.used == [True, False]
    counting.clear()
    assert counting.read([]).weight == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_l1_5_a_mean_over_nothing_counts_as_0(bad):
    counting = Counting()
    counting.add(numbers(bad, 0.0), ())
    counting.add(numbers(5.0, 1.0), ())
    found = counting.read([])
    assert (found.loss_sum, found.weight) == (5.0, 1.0)


def test_a_loss_that_is_not_finite_is_told():
    counting = Counting()
    counting.add(numbers(math.nan, 1.0), ())
    assert math.isnan(counting.read([]).loss_sum)

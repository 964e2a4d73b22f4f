"""Summed gradients with coefficients are the update law, whatever way a batch is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from unified_ipu.device import loss_coefficients, micro_batch_coefficient
from unified_ipu.errors import ConfigError

SAMPLES = np.arange(1.0, 17.0)  # loss (w * x)**2 at w = 1: its gradient is 2 * x**2
SPLITS = [(16, 1, 1), (4, 1, 4), (4, 4, 1), (4, 2, 2), (2, 2, 4), (2, 4, 2), (1, 16, 1)]


def device_gradient(coefficients, splits):
    """What a device does: gradients of all micro-batches of all replicas, added."""
    micro, accumulation, replicas = splits
    rows = (2.0 * SAMPLES**2 * coefficients).reshape(accumulation * replicas, micro)
    return sum(float(row.sum()) for row in rows)


@pytest.mark.parametrize("splits", SPLITS)
def test_l1_3_summed_gradients_of_rows_are_the_mean_in_every_split(splits):
    ones = np.ones(16)
    assert device_gradient(loss_coefficients(ones), splits) == pytest.approx(187.0, rel=1e-15)
    summed = loss_coefficients(ones, reduction="sum")
    assert device_gradient(summed, splits) == 2992.0


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize(("reduction", "expected"), [("mean", 187.0), ("sum", 2992.0)])
def test_l1_3_opaque_means_are_weighed_by_their_micro_batch(splits, reduction, expected):
    micro = splits[0]
    found = 0.0
    for rows in SAMPLES.reshape(-1, micro):
        mean = float((2.0 * rows**2).mean())
        found += mean * micro_batch_coefficient(micro, 16.0, reduction=reduction, divided=True)
    assert found == pytest.approx(expected, rel=1e-15)


def test_l1_3_a_sum_is_divided_once():
    assert micro_batch_coefficient(4.0, 16.0, divided=False) == 1 / 16
    assert micro_batch_coefficient(4.0, 16.0, reduction="sum", divided=False) == 1.0


def test_l2_9_padding_has_coefficient_0_and_does_not_count():
    weights = [1.0, 1.0, 1.0, 0.0]
    assert loss_coefficients(weights).tolist() == [1 / 3, 1 / 3, 1 / 3, 0.0]


def test_one_process_divides_by_w_of_the_world():
    assert loss_coefficients([1.0, 1.0], total=8.0).tolist() == [0.125, 0.125]


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40), st.integers(1, 5))
def test_l1_3_coefficients_of_any_weights_add_up_to_one_over_all_processes(weights, processes):
    if sum(weights) <= 0.0:
        with pytest.raises(ConfigError, match="cannot be fed"):
            loss_coefficients(weights)
        return
    parts = np.array_split(np.array(weights), processes)
    found = sum(float(loss_coefficients(p, total=sum(weights)).sum()) for p in parts)
    assert found == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("weights", [[-1.0, 2.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(ConfigError, match="finite and not negative"):
        loss_coefficients(weights)


def test_an_update_that_weighs_nothing_is_not_fed():
    with pytest.raises(ConfigError, match="left out"):
        micro_batch_coefficient(0.0, 0.0, divided=True)

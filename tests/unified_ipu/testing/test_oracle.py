"""The oracle is right: finite differences, literals, and losses summed up by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unified_ipu.adapter import optim
from unified_ipu.testing import samples
from unified_ipu.testing.oracle import (
    Oracle,
    absolute_error,
    cross_entropy,
    gradient_of,
    huber,
    negative_log_likelihood,
    outputs_of,
    product,
    sigmoid_cross_entropy,
    squared_error,
)

LOSSES = {
    "squared error": (squared_error, samples.regression(6)),
    "absolute error": (absolute_error, samples.regression(6)),
    "huber": (huber(0.5), samples.regression(6)),
    "sigmoid cross entropy": (
        sigmoid_cross_entropy,
        (samples.regression(6)[0], (samples.regression(6)[1] > 0.0).astype(float)),
    ),
    "negative log likelihood": (
        negative_log_likelihood(samples.CLASS_WEIGHTS, samples.IGNORED),
        samples.classification(6),
    ),
    "cross entropy": (
        cross_entropy(samples.CLASS_WEIGHTS, samples.IGNORED),
        samples.classification(6),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name):
    loss, (x, targets) = LOSSES[name]
    parameters = samples.canonical_mlp((3, 4, 2 if targets.ndim > 1 else 3))
    _, _, by_outputs = loss(outputs_of(parameters, x), targets)
    found = gradient_of(parameters, x, by_outputs)
    for key, value in parameters.items():
        for place in np.ndindex(value.shape):
            sides = []
            for sign in (1.0, -1.0):
                moved = {n: np.array(p) for n, p in parameters.items()}
                moved[key][place] += sign * 1e-5
                sides.append(loss(outputs_of(moved, x), targets)[0])
            assert found[key][place] == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-7)


def test_cross_entropy_of_equal_logits_is_the_log_of_the_classes():
    total, weight, _ = cross_entropy((1.0, 2.0, 0.5), -1)(np.zeros((3, 3)), np.array([1, -1, 2]))
    assert total == pytest.approx(2.5 * math.log(3.0))
    assert weight == 2.5


def test_losses_of_one_element_worked_out_by_hand():
    one, three = np.ones((1, 1)), np.full((1, 1), 3.0)
    assert absolute_error(three, one)[:2] == (2.0, 1.0)
    assert huber(0.5)(three, one)[:2] == (0.875, 1.0)
    assert huber(2.0)(three, one)[:2] == (2.0, 1.0)
    value, weight, gradient = sigmoid_cross_entropy(0.0 * one, one)
    assert value == pytest.approx(math.log(2.0))
    assert weight == 1.0
    assert gradient.tolist() == [[-0.5]]
    found = negative_log_likelihood((2.0, 4.0), -1)(np.array([[0.5, 3.0]]), np.array([1]))
    assert found[:2] == (-12.0, 4.0)
    assert found[2].tolist() == [[0.0, -4.0]]


def test_the_product_counts_rows():
    assert product(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))[:2] == (11.0, 1.0)


def trained(optimizer, gradients, start=1.0, **settings):
    """One weight, whose gradient in each update is given."""
    oracle = Oracle({"weight": np.array([[start]])}, product, optimizer, **settings)
    for gradient in gradients:
        oracle.update(np.array([[gradient]]), np.ones((1, 1)))
    return float(oracle.parameters["weight"][0, 0])


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        # g = 1, then 1: w = 1 - 0.1 - 0.1
        (optim.SGD(lr=0.1), 0.8),
        # d = 1 + 0.5 w: 1 - 0.1 * 1.5 = 0.85, then 0.85 - 0.1 * 1.425
        (optim.SGD(lr=0.1, weight_decay=0.5), 0.7075),
        # velocity 1, then 0.5 * 1 + 1
        (optim.SGD(lr=0.1, momentum=0.5), 0.75),
        # velocity 1, then 0.5 * 1 + 0.75 * 1
        (optim.SGD(lr=0.1, momentum=0.5, dampening=0.25), 0.775),
        # d = 1 + 0.5 * 1, then 1 + 0.5 * 1.5
        (optim.SGD(lr=0.1, momentum=0.5, nesterov=True), 0.675),
        # a constant gradient gives steps of lr
        (optim.Adam(lr=0.1, eps=0.0), 0.8),
        # 1 * 0.95 - 0.1 = 0.85, then 0.85 * 0.95 - 0.1
        (optim.AdamW(lr=0.1, eps=0.0, weight_decay=0.5), 0.7075),
    ],
)
def test_two_steps_worked_out_by_hand(optimizer, expected):
    assert trained(optimizer, [1.0, 1.0]) == pytest.approx(expected, rel=1e-14)


def test_adam_with_two_different_gradients():
    # m = 0.1, then 0.29; v = 0.001, then 0.004999; corrections 0.1, 0.19 and 0.001, 0.001999.
    second = (0.29 / 0.19) / math.sqrt(0.004999 / 0.001999)
    found = trained(optim.Adam(lr=1.0, eps=0.0), [1.0, 2.0], start=0.0)
    assert found == pytest.approx(-1.0 - second, rel=1e-12)


def test_clipping_schedule_penalty_and_sum():
    assert trained(optim.SGD(lr=1.0), [3.0], clip_norm=1.5) == pytest.approx(-0.5)
    assert trained(optim.SGD(lr=1.0), [1.0, 1.0], factor=lambda u: 0.5**u) == pytest.approx(-0.5)
    assert trained(optim.SGD(lr=1.0), [1.0], l2=0.25) == pytest.approx(-0.5)
    oracle = Oracle({"weight": np.zeros((1, 1))}, product, optim.SGD(lr=1.0), reduction="sum")
    oracle.update(np.array([[1.0], [2.0]]), np.ones((2, 1)))
    assert oracle.parameters["weight"].tolist() == [[-3.0]]


def test_an_update_without_weight_does_not_happen():
    oracle = Oracle({"weight": np.ones((1, 2))}, cross_entropy(None, -1), optim.SGD(lr=1.0))
    oracle.update(np.ones((1, 1)), np.array([-1]))
    assert (oracle.happened, oracle.weights) == (0, [0.0])
    assert oracle.parameters["weight"].tolist() == [[1.0, 1.0]]

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.adapter import metrics
from unified_ipu.errors import ConfigError


def test_accuracy_counts_the_rows_whose_largest_output_is_the_target():
    outputs = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert metrics.accuracy(outputs, np.array([1, 1, 1])) == (2.0, 3.0)


def test_accuracy_over_positions_counts_every_position():
    outputs = np.zeros((2, 3, 4))
    outputs[:, 1] = 1.0
    assert metrics.accuracy(outputs, np.array([[1, 1, 0, 1], [1, 2, 1, 1]])) == (6.0, 8.0)


def test_accuracy_refuses_shapes_that_hold_no_classes():
    with pytest.raises(ConfigError, match=r"\(3,\) and targets of shape \(3,\)"):
        metrics.accuracy(np.zeros(3), np.zeros(3))

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.adapter import Tally
from unified_ipu.engine.header import HeaderLayout, check_metric_names
from unified_ipu.errors import ConfigError


def test_what_is_written_by_two_ranks_is_read_from_the_sum():
    layout = HeaderLayout(num_parameters=3)
    first, second = np.zeros(layout.size), np.zeros(layout.size)
    one = Tally(loss_sum=1.5, weight=4.0, used=[True, False, False], metrics={"a": (1, 2)})
    two = Tally(loss_sum=0.5, weight=2.0, used=[True, True, False], metrics={"a": (3, 4)})
    layout.write(first, one, samples=4, metric_names=("a",))
    layout.write(second, two, samples=2, metric_names=("a",))
    total = first + second
    assert total[:4].tolist() == [6.0, 2.0, 6.0, 0.0]
    assert layout.used(total) == [True, True, False]
    assert layout.metrics(total, ("a",)) == {"a": (4.0, 6.0)}


def test_a_rank_with_other_metric_names_raises_its_flag():
    layout = HeaderLayout(num_parameters=1)
    header = np.zeros(layout.size)
    tally = Tally(loss_sum=0.0, weight=1.0, used=[True], metrics={"b": (1.0, 1.0)})
    layout.write(header, tally, samples=1, metric_names=("a",))
    assert header[3] == 1.0


def test_a_rank_without_samples_cannot_disagree():
    layout = HeaderLayout(num_parameters=1)
    header = np.ones(layout.size)
    nothing = Tally(loss_sum=0.0, weight=0.0, used=[False])
    layout.write(header, nothing, samples=0, metric_names=("a",))
    assert not header.any()


def test_more_than_32_metrics_are_refused_with_the_number():
    with pytest.raises(ConfigError, match="33 metrics; at most 32"):
        check_metric_names([str(index) for index in range(33)])

from __future__ import annotations

import pytest

from unified_ipu.engine import LearningRateFactor
from unified_ipu.errors import ConfigError


def test_warmup_rises_to_the_full_factor_at_its_last_update():
    factor = LearningRateFactor(warmup_updates=4)
    assert [factor(update) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_the_users_schedule_multiplies_warmup_and_scaling():
    factor = LearningRateFactor(
        scale=2.0,
        warmup_updates=2,
        schedule=lambda update: 0.5**update,
    )
    assert [factor(update) for update in range(3)] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, "fast", None])
def test_a_schedule_that_returns_no_factor_is_refused(value):
    with pytest.raises(ConfigError, match=r"schedule\(3\) returned"):
        LearningRateFactor(schedule=lambda update: value)(3)

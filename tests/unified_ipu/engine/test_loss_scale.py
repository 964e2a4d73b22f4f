"""The loss scale: its rules as literals, its state, and what it makes of large weights."""

from __future__ import annotations

import pytest

from unified_ipu.engine import UpdateRules
from unified_ipu.engine.loss_scale import GROWTH_INTERVAL, LossScale, loss_scale_of
from unified_ipu.errors import ConfigError


def scale(setting="dynamic", *, reference=64.0, is_reduced=False):
    return LossScale(setting, reference, is_reduced=is_reduced)


def happen(one, count):
    for _ in range(count):
        one.after(64.0, happened=True, overflowed=False)


def overflow(one):
    one.after(64.0, happened=False, overflowed=True)


def test_a_dynamic_scale_begins_at_65536_and_is_halved_by_every_overflow():
    one = scale()
    found = [one.value]
    for _ in range(3):
        overflow(one)
        found.append(one.value)
    assert found == [65536.0, 32768.0, 16384.0, 8192.0]


def test_2000_updates_in_a_row_double_it():
    one = scale()
    happen(one, 1999)
    assert one.value == 65536.0
    happen(one, 1)
    assert one.value == 131072.0
    happen(one, 2000)
    assert one.value == 262144.0


def test_an_overflow_begins_the_count_anew():
    one = scale()
    happen(one, 1999)
    overflow(one)
    happen(one, 1999)
    assert one.value == 32768.0
    happen(one, 1)
    assert one.value == 65536.0


def test_an_update_in_which_nothing_counts_does_not_count_here_either():
    one = scale()
    happen(one, 1999)
    one.after(0.0, happened=False, overflowed=False)
    assert one.value == 65536.0
    happen(one, 1)
    assert one.value == 131072.0


def test_it_stays_at_2_to_the_24():
    one = scale()
    happen(one, 20 * GROWTH_INTERVAL)
    assert one.value == 16777216.0


def test_at_1_nothing_is_left_to_try():
    one = scale()
    for _ in range(15):
        overflow(one)
    assert (one.value, one.skips) == (2.0, True)
    overflow(one)
    assert (one.value, one.skips) == (1.0, False)


def test_a_fixed_scale_never_moves_and_always_skips():
    one = scale(1000.0)
    for _ in range(100):
        overflow(one)
    happen(one, 2 * GROWTH_INTERVAL)
    assert (one.value, one.skips) == (1000.0, True)


def test_without_a_scale_nothing_is_skipped():
    assert loss_scale_of(UpdateRules()) is None
    one = loss_scale_of(UpdateRules(compute="float16"))
    assert one is not None
    assert (one.value, one.skips) == (1.0, False)


def test_in_float32_the_scale_multiplies_what_would_be_there_without_it():
    assert scale(1024.0).seed(1 / 48) == 1024.0 / 48


def test_in_half_precision_the_seed_is_divided_by_the_largest_weight_of_an_update():
    one = scale(1024.0, is_reduced=True)
    assert one.seed(1 / 48) == 1024.0 / 64
    one.after(64.0 * 2000, happened=True, overflowed=False)  # 2000 tokens a sample
    assert one.seed(1 / 48) == 1024.0 / 131072
    one.after(2000.0, happened=True, overflowed=False)  # the short last update of an epoch
    assert one.seed(1 / 48) == 1024.0 / 131072


def test_state_goes_on_where_it_was():
    one = scale(is_reduced=True)
    overflow(one)
    happen(one, 1500)
    other = scale(is_reduced=True)
    other.load_scalars(one.scalars())
    assert other.scalars() == {
        "value": 32768.0,
        "updates_since_change": 1500,
        "largest_weight": 64.0,
    }
    happen(other, 500)
    assert other.value == 65536.0


def test_a_fixed_scale_is_the_plans_and_not_the_checkpoints():
    one = scale(512.0)
    one.load_scalars(scale().scalars())
    assert one.value == 512.0


@pytest.mark.parametrize(
    "damaged",
    [{}, {"value": "x", "updates_since_change": 0, "largest_weight": 0}],
)
def test_a_damaged_state_is_refused(damaged):
    with pytest.raises(ConfigError, match="loss scale is damaged"):
        scale().load_scalars(damaged)


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan"), -2.0])
def test_an_impossible_scale_is_refused(value):
    state = {"value": value, "updates_since_change": 0, "largest_weight": 0.0}
    with pytest.raises(ConfigError, match=r"expected one from 1 to 1\.67772e"):
        scale().load_scalars(state)

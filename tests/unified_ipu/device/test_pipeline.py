from __future__ import annotations

import pytest

from unified_ipu.device import forward_stages, power_of_two, training_stages


@pytest.mark.parametrize(
    ("ipus", "stages"), [([0, 1, 2, 3], 4), ([0, 0, 1], 2), ([0, 1, 0], 3), ([0], 1), ([], 1)]
)
def test_stages_are_counted_by_the_changes_of_ipu(ipus: list, stages: int) -> None:
    assert forward_stages(ipus) == stages


def test_four_forward_stages_train_as_seven() -> None:
    assert training_stages(4) == 7


@pytest.mark.parametrize(("ipus", "reserved"), [(1, 1), (2, 2), (3, 4), (5, 8), (64, 64)])
def test_ipus_are_reserved_in_powers_of_two(ipus: int, reserved: int) -> None:
    assert power_of_two(ipus) == reserved

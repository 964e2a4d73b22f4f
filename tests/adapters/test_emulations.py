"""What the emulations of several adapters share."""

from __future__ import annotations

from enum import IntEnum

import pytest

from unified_ipu_onnx.emulated import popart
from unified_ipu_torch.emulated import popart as enumerations

ENUMERATIONS = sorted(
    name
    for name, value in vars(enumerations).items()
    if isinstance(value, type) and issubclass(value, IntEnum) and value is not IntEnum
)


def members(kind):
    return {name: int(member) for name, member in kind.__members__.items()}


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_both_emulations_of_popart_have_the_same_integers(name):
    assert members(getattr(popart, name)) == members(getattr(enumerations, name))


def test_the_enumerations_that_scripts_of_poptorch_use_are_there():
    assert len(ENUMERATIONS) == 12
    assert "AccumulateOuterFragmentSchedule" in ENUMERATIONS

"""What a device target refuses: a scenario that cannot run there is skipped with the reason.

A device has static shapes and limits that no capability names, and L5.5 asks that it refuses what
it cannot do before training starts. On ``cpu`` and ``cuda`` nothing is skipped this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Sequence

import pytest

from unified_ipu.errors import CapabilityError, PlanError

HOST_TARGETS = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Refused:
    """What a rank returns instead of its result.

    Args:
        message: The refusal: it names the setting to change.
    """

    message: str


def or_refused(target: str, function: Callable[[], Any]) -> Any:
    """Call ``function``; on a device target a refusal of the plan or the adapter is a result."""
    if target in HOST_TARGETS:
        return function()
    try:
        return function()
    except (PlanError, CapabilityError) as error:
        return Refused(str(error))


def skip_if_refused(target: str, results: Sequence[Any]) -> List[Any]:
    """Return the results, or skip the test if all ranks refused.

    Raises:
        AssertionError: If only some did: a refusal is the same on all ranks.
    """
    refused = [rank for rank, result in enumerate(results) if isinstance(result, Refused)]
    if not refused:
        return list(results)
    first: Refused = results[refused[0]]
    assert len(refused) == len(results), f"only ranks {refused} refused: {first.message}"
    return pytest.skip(f"{target} refuses: {first.message}")

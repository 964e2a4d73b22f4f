"""What all suites share, and how skips come from what an adapter declares."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from unified_ipu.adapter import Capability, Support, load_adapter
from unified_ipu.testing.float_types import float_type_of
from unified_ipu.testing.ranks import Raised, Ranks, Scenario
from unified_ipu.testing.subject import Subject


class AdapterSuite:
    """Base of the suites: the author overrides ``subject`` and ``ranks``.

    Tolerances are relative norms; a subclass that loosens one says why beside it.
    """

    tolerance_float64: float = 1e-12
    """Of all weights after at most 50 updates in float64."""
    tolerance_float32_update: float = 5e-5
    """Of the change of a tensor in one update in float32."""
    tolerance_float32: float = 1e-4
    """Of all weights after at most 50 updates in float32."""

    def tolerance_of(self, ranks: Ranks) -> float:
        """Of all weights after at most 50 updates in the type that ranks compute in."""
        if float_type_of(ranks) == "float64":
            return self.tolerance_float64
        return self.tolerance_float32

    @pytest.fixture
    def subject(self) -> Subject:
        """Return the subject under test."""
        raise NotImplementedError("override the fixture `subject` in the test class")

    @pytest.fixture
    def ranks(self, subject: Subject) -> Ranks:
        """Return what runs scenarios: ``ThreadRanks(subject)`` or ``PoolRanks(subject, pool)``."""
        raise NotImplementedError("override the fixture `ranks` in the test class")


def requires(*capabilities: Capability) -> pytest.MarkDecorator:
    """Skip a test, or a suite, unless the adapter declares these as usable."""
    return pytest.mark.requires_capability(*capabilities)


def holds(*clauses: str) -> pytest.MarkDecorator:
    """Name clauses that a test holds beside the one in its name."""
    return pytest.mark.holds(*clauses)


def support_of(adapter: str, capability: Capability) -> Support:
    """Level that the adapter of that name declares; a missing one is no support."""
    return load_adapter(adapter).support.get(capability, Support.NOT_WRITTEN)


def all_raise(ranks: Ranks, scenario: Scenario, size: int, kind: str, **kwargs: Any) -> List[str]:
    """Run a scenario that must end in ``kind`` on every rank; the messages by rank."""
    results = ranks.run(scenario, size, **kwargs)
    for number, result in enumerate(results):
        assert isinstance(result, Raised), f"rank {number} raised nothing, but: {result!r}"
        assert kind in result.kinds, f"rank {number}: {result.kinds[0]}: {result.message}"
    return [result.message for result in results]


def relative_error(got: Any, expected: Any) -> float:
    """Relative norm of the difference of two dicts of arrays, as one vector."""
    assert set(got) == set(expected)
    difference = sum(float(np.sum(np.square(got[n] - expected[n], dtype=np.float64))) for n in got)
    size = sum(float(np.sum(np.square(expected[n], dtype=np.float64))) for n in expected)
    return float(np.sqrt(difference) / max(np.sqrt(size), np.finfo(np.float64).tiny))

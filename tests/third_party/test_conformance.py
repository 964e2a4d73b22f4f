"""The conformance suites on the sample numpy adapter, whose ranks are threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unified_ipu import testing

sys.path[:0] = [str(Path(__file__).parent / "unified_ipu_numpy_sample"), str(Path(__file__).parent)]

from numpy_subject import NumpySubject


class Fixtures:
    @pytest.fixture
    def subject(self):
        return NumpySubject()

    @pytest.fixture
    def ranks(self, subject):
        return testing.ThreadRanks(subject)


class TestUpdateLaw(Fixtures, testing.UpdateLawSuite):
    pass


class TestUpdateDecision(Fixtures, testing.UpdateDecisionSuite):
    pass


class TestUpdateOracle(Fixtures, testing.UpdateOracleSuite):
    pass

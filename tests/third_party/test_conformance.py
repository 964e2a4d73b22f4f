"""The conformance suites on the sample numpy adapter, whose ranks are threads."""

from __future__ import annotations

import pytest
from unified_ipu_numpy_conformance import NumpySubject

from unified_ipu import testing


class Fixtures:
    @pytest.fixture
    def subject(self) -> NumpySubject:
        return NumpySubject()

    @pytest.fixture
    def ranks(self, subject: NumpySubject) -> testing.ThreadRanks:
        return testing.ThreadRanks(subject)


class TestUpdateLaw(Fixtures, testing.UpdateLawSuite):
    pass


class TestUpdateDecision(Fixtures, testing.UpdateDecisionSuite):
    pass


class TestUpdateOracle(Fixtures, testing.UpdateOracleSuite):
    pass


class TestDataLaw(Fixtures, testing.DataLawSuite):
    pass


class TestRandomNumbers(Fixtures, testing.RandomNumbersSuite):
    pass


class TestWeights(Fixtures, testing.WeightsSuite):
    pass


class TestStateLaw(Fixtures, testing.StateLawSuite):
    pass


class TestAgreement(Fixtures, testing.AgreementSuite):
    pass


class TestConcurrency(Fixtures, testing.ConcurrencySuite):
    pass


class TestLoss(Fixtures, testing.LossSuite):
    pass


class TestOptimizer(Fixtures, testing.OptimizerSuite):
    pass


class TestPrecision(Fixtures, testing.PrecisionSuite):
    pass


class TestSchedule(Fixtures, testing.ScheduleSuite):
    pass


class TestEvaluation(Fixtures, testing.EvaluationSuite):
    pass


class TestBadInput(Fixtures, testing.BadInputSuite):
    pass

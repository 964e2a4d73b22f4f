"""The conformance suites on the TensorFlow adapter, whose ranks are warm processes."""

from __future__ import annotations

import pytest

from unified_ipu import testing
from unified_ipu_tensorflow.conformance import TensorflowSubject

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]


class Fixtures:
    @pytest.fixture
    def subject(self):
        return TensorflowSubject()

    @pytest.fixture
    def ranks(self, subject, warm_pool):
        return testing.PoolRanks(subject, warm_pool)


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


class TestEvaluation(Fixtures, testing.EvaluationSuite):
    pass


class TestBadInput(Fixtures, testing.BadInputSuite):
    pass


class TestAgreement(Fixtures, testing.AgreementSuite):
    pass


class TestConcurrency(Fixtures, testing.ConcurrencySuite):
    pass


class TestOptimizer(Fixtures, testing.OptimizerSuite):
    pass


class TestPrecision(Fixtures, testing.PrecisionSuite):
    pass


class TestSchedule(Fixtures, testing.ScheduleSuite):
    pass


class TestLoss(Fixtures, testing.LossSuite):
    pass

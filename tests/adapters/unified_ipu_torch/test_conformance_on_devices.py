"""The conformance suites on the emulated PopTorch device, whose ranks are warm processes."""

from __future__ import annotations

import pytest

from unified_ipu import testing
from unified_ipu_torch.conformance import TorchSubject

pytestmark = pytest.mark.timeout(120)


class Fixtures:
    @pytest.fixture
    def subject(self):
        return TorchSubject()

    @pytest.fixture
    def ranks(self, subject, warm_pool):
        return testing.PoolRanks(subject, warm_pool, "ipu-emulated")


class TestUpdateLaw(Fixtures, testing.UpdateLawSuite):
    pass


class TestUpdateDecision(Fixtures, testing.UpdateDecisionSuite):
    pass


class TestUpdateOracle(Fixtures, testing.UpdateOracleSuite):
    pass


class TestDataLaw(Fixtures, testing.DataLawSuite):
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

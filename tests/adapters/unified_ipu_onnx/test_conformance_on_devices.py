"""The conformance suites on the emulated PopART device, whose ranks are warm processes.

Left to the command, which runs all of them: random numbers, of which a device holds nothing; what
is refused before a device is asked; the fifty updates of each option of an optimizer, which
``ipu/test_parity.py`` holds to the host's.
"""

from __future__ import annotations

import pytest

from unified_ipu import testing
from unified_ipu_onnx.conformance import OnnxSubject

pytestmark = pytest.mark.timeout(120)


class Fixtures:
    @pytest.fixture
    def subject(self):
        return OnnxSubject()

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
    test_l5_3_fifty_updates_with_each_option_equal_the_oracle = None  # type: ignore[assignment]


class TestSchedule(Fixtures, testing.ScheduleSuite):
    pass


class TestEvaluation(Fixtures, testing.EvaluationSuite):
    pass

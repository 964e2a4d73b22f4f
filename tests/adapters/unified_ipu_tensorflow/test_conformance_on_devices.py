"""Conformance suites on the emulated device of IPU Keras, whose ranks are warm processes.

Three of them: how updates are made, which happen, and the optimizers, whose arithmetic is another
on a device. ``unified-ipu conformance tensorflow --target ipu-emulated`` runs all.
"""

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
        return testing.PoolRanks(subject, warm_pool, "ipu-emulated")


class TestUpdateLaw(Fixtures, testing.UpdateLawSuite):
    pass


class TestUpdateDecision(Fixtures, testing.UpdateDecisionSuite):
    pass


class TestOptimizer(Fixtures, testing.OptimizerSuite):
    pass

"""All suites on the adapter that the command line names; collected by the command only."""

from __future__ import annotations

from typing import Iterator

import pytest

from unified_ipu.testing.agreement import AgreementSuite
from unified_ipu.testing.bad_input import BadInputSuite
from unified_ipu.testing.concurrency import ConcurrencySuite
from unified_ipu.testing.data_law import DataLawSuite
from unified_ipu.testing.evaluation import EvaluationSuite
from unified_ipu.testing.losses import LossSuite
from unified_ipu.testing.optimizers import OptimizerSuite
from unified_ipu.testing.plugin import ADAPTER, SUBJECT, TARGET
from unified_ipu.testing.pool import WarmPool
from unified_ipu.testing.precision import PrecisionSuite
from unified_ipu.testing.random_law import RandomNumbersSuite
from unified_ipu.testing.ranks import PoolRanks, Ranks, ThreadRanks
from unified_ipu.testing.schedules import ScheduleSuite
from unified_ipu.testing.state_law import StateLawSuite
from unified_ipu.testing.subject import Subject
from unified_ipu.testing.subjects import find_subject, preloaded_by, runs_in_threads
from unified_ipu.testing.update_law import UpdateDecisionSuite, UpdateLawSuite
from unified_ipu.testing.update_oracle import UpdateOracleSuite
from unified_ipu.testing.weights import WeightsSuite


@pytest.fixture(scope="session")
def installed_subject(pytestconfig: pytest.Config) -> Subject:
    """The subject of the adapter that was asked for."""
    return find_subject(pytestconfig.getoption(ADAPTER), pytestconfig.getoption(SUBJECT))


@pytest.fixture(scope="session")
def warm_pool(installed_subject: Subject) -> Iterator[WarmPool]:
    """Warm ranks that have imported what the subject names."""
    with WarmPool(preload=preloaded_by(installed_subject)) as pool:
        yield pool


class Installed:
    """Fixtures that every suite needs."""

    @pytest.fixture
    def subject(self, installed_subject: Subject) -> Subject:
        """The installed adapter's."""
        return installed_subject

    @pytest.fixture
    def ranks(self, subject: Subject, warm_pool: WarmPool, pytestconfig: pytest.Config) -> Ranks:
        """Threads where the subject allows it, warm processes otherwise."""
        target: str = pytestconfig.getoption(TARGET)
        if runs_in_threads(subject):
            return ThreadRanks(subject, target)
        return PoolRanks(subject, warm_pool, target)


class TestUpdateLaw(Installed, UpdateLawSuite):
    """See the suite."""


class TestUpdateDecision(Installed, UpdateDecisionSuite):
    """See the suite."""


class TestUpdateOracle(Installed, UpdateOracleSuite):
    """See the suite."""


class TestDataLaw(Installed, DataLawSuite):
    """See the suite."""


class TestStateLaw(Installed, StateLawSuite):
    """See the suite."""


class TestRandomNumbers(Installed, RandomNumbersSuite):
    """See the suite."""


class TestWeights(Installed, WeightsSuite):
    """See the suite."""


class TestAgreement(Installed, AgreementSuite):
    """See the suite."""


class TestConcurrency(Installed, ConcurrencySuite):
    """See the suite."""


class TestLoss(Installed, LossSuite):
    """See the suite."""


class TestOptimizer(Installed, OptimizerSuite):
    """See the suite."""


class TestPrecision(Installed, PrecisionSuite):
    """See the suite."""


class TestSchedule(Installed, ScheduleSuite):
    """See the suite."""


class TestEvaluation(Installed, EvaluationSuite):
    """See the suite."""


class TestBadInput(Installed, BadInputSuite):
    """See the suite."""

"""The conformance kit; a pytest plugin, and the only room that imports pytest.

Load it from the root ``conftest.py``: ``pytest_plugins = ["unified_ipu.testing"]``.
"""

from __future__ import annotations

from unified_ipu.testing.agreement import AgreementSuite as AgreementSuite
from unified_ipu.testing.bad_input import BadInputSuite as BadInputSuite
from unified_ipu.testing.concurrency import ConcurrencySuite as ConcurrencySuite
from unified_ipu.testing.data_law import DataLawSuite as DataLawSuite
from unified_ipu.testing.evaluation import EvaluationSuite as EvaluationSuite
from unified_ipu.testing.losses import LossSuite as LossSuite
from unified_ipu.testing.optimizers import OptimizerSuite as OptimizerSuite
from unified_ipu.testing.plugin import (
    held_on_devices as held_on_devices,
    pytest_addoption as pytest_addoption,
    pytest_configure as pytest_configure,
    requires_capability as requires_capability,
)
from unified_ipu.testing.pool import WarmPool as WarmPool, warm_pool as warm_pool
from unified_ipu.testing.precision import PrecisionSuite as PrecisionSuite
from unified_ipu.testing.random_law import RandomNumbersSuite as RandomNumbersSuite
from unified_ipu.testing.ranks import (
    PoolRanks as PoolRanks,
    Rank as Rank,
    Ranks as Ranks,
    ThreadRanks as ThreadRanks,
)
from unified_ipu.testing.schedules import ScheduleSuite as ScheduleSuite
from unified_ipu.testing.state_law import StateLawSuite as StateLawSuite
from unified_ipu.testing.subject import Model as Model, Subject as Subject
from unified_ipu.testing.suite import AdapterSuite as AdapterSuite
from unified_ipu.testing.threads import RanksFailedError as RanksFailedError, run_ranks as run_ranks
from unified_ipu.testing.update_law import (
    UpdateDecisionSuite as UpdateDecisionSuite,
    UpdateLawSuite as UpdateLawSuite,
)
from unified_ipu.testing.update_oracle import UpdateOracleSuite as UpdateOracleSuite
from unified_ipu.testing.weights import WeightsSuite as WeightsSuite

__all__ = [
    "AdapterSuite",
    "AgreementSuite",
    "BadInputSuite",
    "ConcurrencySuite",
    "DataLawSuite",
    "EvaluationSuite",
    "LossSuite",
    "Model",
    "OptimizerSuite",
    "PoolRanks",
    "PrecisionSuite",
    "RandomNumbersSuite",
    "Rank",
    "Ranks",
    "RanksFailedError",
    "ScheduleSuite",
    "StateLawSuite",
    "Subject",
    "ThreadRanks",
    "UpdateDecisionSuite",
    "UpdateLawSuite",
    "UpdateOracleSuite",
    "WarmPool",
    "WeightsSuite",
    "held_on_devices",
    "pytest_addoption",
    "pytest_configure",
    "requires_capability",
    "run_ranks",
    "warm_pool",
]

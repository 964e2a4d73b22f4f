"""The engine over c10d: laws of the kit on the numpy adapter, ranks being threads over gloo."""

from __future__ import annotations

import pytest
from unified_ipu_numpy_conformance import NumpySubject

from tests.unified_ipu.comms.arranged_groups import arranged
from unified_ipu import testing
from unified_ipu.testing import threads
from unified_ipu_torch.c10d import local_group


class OverC10d:
    @pytest.fixture
    def subject(self) -> NumpySubject:
        return NumpySubject()

    @pytest.fixture
    def ranks(self, subject: NumpySubject, monkeypatch: pytest.MonkeyPatch) -> testing.ThreadRanks:
        monkeypatch.setattr(threads, "local_group", local_group)
        return testing.ThreadRanks(subject)


class TestUpdateLaw(OverC10d, testing.UpdateLawSuite):
    pass


class TestDataLaw(OverC10d, testing.DataLawSuite):
    pass


class ByHost(OverC10d):
    """Half of the ranks are on another host."""

    @pytest.fixture
    def ranks(self, subject: NumpySubject, monkeypatch: pytest.MonkeyPatch) -> testing.ThreadRanks:
        monkeypatch.setattr(threads, "local_group", arranged(local_group, "hierarchical"))
        return testing.ThreadRanks(subject)


class TestUpdateLawByHost(ByHost, testing.UpdateLawSuite):
    pass


class TestUpdateDecisionByHost(ByHost, testing.UpdateDecisionSuite):
    pass

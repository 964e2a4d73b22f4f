"""PopART under PopRun: the backend of popdist is started before any session."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import List

import pytest

from unified_ipu.errors import ConfigError
from unified_ipu_onnx.ipu.sdk import sdk_of

POPRUN = {
    "POPDIST_NUM_IPUS_PER_REPLICA": "1",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_NUM_TOTAL_REPLICAS": "4",
    "POPDIST_REPLICA_INDEX_OFFSET": "2",
}


@pytest.fixture
def popart(monkeypatch):
    module = ModuleType("popart")
    monkeypatch.setitem(sys.modules, "popart", module)
    return module


@pytest.fixture
def started(monkeypatch):
    """Each ``init()`` of a popdist that only PopRun would bring."""
    calls: List[int] = []
    fake = SimpleNamespace(isBackendInitialized=lambda: bool(calls), init=lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "popdist", fake)
    return calls


def test_the_backend_is_started_once_under_poprun(popart, started, monkeypatch):
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    assert sdk_of("ipu") is popart
    assert sdk_of("ipu") is popart
    assert started == [1]


def test_it_is_left_alone_elsewhere(popart, started):
    assert sdk_of("ipu") is popart
    assert started == []


def test_under_poprun_a_missing_popdist_is_said_before_anything_is_compiled(popart, monkeypatch):
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "popdist", None)
    with pytest.raises(ConfigError, match="popdist cannot be imported"):
        sdk_of("ipu")

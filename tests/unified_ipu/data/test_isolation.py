"""Where a pipeline runs when the plan leaves it open, and where it may not."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import numpy as np
import pytest

from unified_ipu.comms import connect
from unified_ipu.data import PipelineSource, arrays, isolated_as_needed, isolation, stream
from unified_ipu.data.live_source import is_local
from unified_ipu.errors import ConfigError
from unified_ipu.plan import DataSettings
from unified_ipu.world import Packages

pytestmark = pytest.mark.timeout(60)

PIPELINE = PipelineSource("tensorflow", "pipeline:train", 8)
# The CUDA build of torch brings triton.
CRASHING = Packages({"tensorflow-cpu": "2.21.0", "torch": "2.13.0", "triton": "3.9.0"})
CRASH = "tensorflow-cpu + torch + triton: a process that imports both may end with SIGSEGV"
QUIET = Packages({"tensorflow-cpu": "2.21.0", "torch": "2.13.0"})


@pytest.fixture
def machine(monkeypatch):
    """Return a function that says what is installed, and whether torch is imported."""

    def draw(packages, *, torch_is_imported):
        monkeypatch.setattr(isolation, "installed_packages", lambda: packages)
        monkeypatch.delitem(sys.modules, "triton", raising=False)
        if torch_is_imported:
            monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
        else:
            monkeypatch.delitem(sys.modules, "torch", raising=False)

    draw(QUIET, torch_is_imported=False)
    return draw


def resolved(*adapters, source=PIPELINE, settings=None):
    communicator = connect(rank=0, size=1, job="")
    return isolated_as_needed(
        settings or DataSettings(),
        source,
        adapters=frozenset(adapters),
        communicator=communicator,
    )


def test_a_pipeline_of_the_models_own_framework_runs_beside_it(machine):
    settings = resolved("tensorflow", settings=DataSettings(shuffle=False))
    assert settings == DataSettings(shuffle=False, isolate="never")
    assert is_local(PIPELINE, settings)


@pytest.mark.parametrize("adapters", [(), ("torch",), ("onnx",), ("tensorflow", "torch")])
def test_other_models_or_none_yet_leave_it_to_a_process_of_its_own(machine, adapters):
    settings = resolved(*adapters)
    assert settings == DataSettings()
    assert not is_local(PIPELINE, settings)


@pytest.mark.parametrize(
    "settings",
    [DataSettings(isolate="always"), DataSettings(workers=2), DataSettings(python="/usr/bin/x")],
)
def test_what_the_plan_says_of_data_processes_is_kept(machine, settings):
    assert resolved("tensorflow", settings=settings) is settings
    assert not is_local(PIPELINE, settings)


@pytest.mark.parametrize("source", [stream("pipeline:train"), arrays(np.ones(2))])
def test_only_pipelines_by_index_move_since_others_are_read_whole_by_each_rank(machine, source):
    assert resolved("tensorflow", source=source) == DataSettings()


def test_ranks_that_would_decide_differently_all_isolate(machine, run_ranks):
    def rank(communicator):
        adapter = "tensorflow" if communicator.rank == 0 else "torch"
        return isolated_as_needed(
            DataSettings(), PIPELINE, adapters=frozenset({adapter}), communicator=communicator
        )

    assert run_ranks(2, rank) == [DataSettings(), DataSettings()]


def test_auto_isolates_where_both_in_a_process_may_crash_it_and_says_why(machine, caplog):
    machine(CRASHING, torch_is_imported=True)
    with caplog.at_level(logging.INFO, "unified_ipu.data"):
        assert resolved("tensorflow") == DataSettings()
    assert caplog.messages == [f"pipeline:train runs in a process of its own: {CRASH}"]


def test_a_torch_that_nobody_imported_harms_nobody(machine):
    machine(CRASHING, torch_is_imported=False)
    assert resolved("tensorflow").isolate == "never"
    assert is_local(PIPELINE, DataSettings(isolate="never"))


def test_never_is_refused_where_both_in_a_process_may_crash_it(machine):
    machine(CRASHING, torch_is_imported=True)
    with pytest.raises(ConfigError) as caught:
        is_local(PIPELINE, DataSettings(isolate="never"))
    text = str(caught.value)
    assert 'data.isolate = "never": pipeline:train cannot run in this process' in text
    assert (
        "tensorflow-cpu + torch + triton: a process that imports both may end with SIGSEGV" in text
    )
    assert 'data.isolate = "auto" or "always"' in text


def test_never_holds_where_the_pair_is_harmless_or_of_another_framework(machine):
    machine(QUIET, torch_is_imported=True)
    assert is_local(PIPELINE, DataSettings(isolate="never"))
    machine(CRASHING, torch_is_imported=True)
    other = PipelineSource("numbers", "pipeline:train", 8)
    assert is_local(other, DataSettings(isolate="never"))

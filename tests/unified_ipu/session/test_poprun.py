"""What PopRun has started and what the plan says are the same, or the session does not begin."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import Plan
from unified_ipu.session.joining import join_plan
from unified_ipu.session.poprun import check_poprun
from unified_ipu.world import World

# From a log of poprun (Poplar SDK 3.3): instance 1 of 2, four replicas of one IPU.
POPRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "77",
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "POPDIST_NUM_IPUS_PER_REPLICA": "1",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_NUM_TOTAL_REPLICAS": "4",
    "POPDIST_REPLICA_INDEX_OFFSET": "2",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
}
WORLD = World(1, 1, 2, 2, launcher="poprun", job="poprun-77")


@pytest.fixture(autouse=True)
def poprun(monkeypatch):
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)


def plan(**settings):
    fields = {"target": "ipu", "ipu.replicas_per_process": 2, **settings}
    return Plan().replace({name.replace("__", "."): value for name, value in fields.items()})


@pytest.mark.parametrize("data", ["auto", 4])
@pytest.mark.parametrize("target", ["ipu", "ipu-emulated"])
def test_a_plan_that_says_what_poprun_says_is_taken(data, target):
    check_poprun(plan(target=target, mesh__data=data), WORLD)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"ipu.replicas_per_process": 1},
            r"replicas_per_process: got 1, .*2 processes 2; set it to 2, .*--num-instances 4",
        ),
        (
            {"ipu.replicas_per_process": 4},
            r"replicas_per_process: got 4, .*--num-instances 1",
        ),
        ({"mesh.data": 2}, r"mesh\.data: got 2, .*4 replicas; set it to 4 .*--num-replicas 2"),
        (
            {"mesh.stage": 2},
            r"ipus_per_replica: 2 of this plan, .*replica 1; .*--ipus-per-replica 2",
        ),
        (
            {"ipu.ipus_per_replica": 2},
            r"ipus_per_replica: 2 of this plan, .*set it to 1,",
        ),
    ],
)
def test_a_plan_that_poprun_contradicts_is_refused_with_both_ways_out(settings, message):
    with pytest.raises(PlanError, match=message):
        check_poprun(plan(**settings), WORLD)


@pytest.mark.parametrize(("rank", "size"), [(0, 2), (1, 4)])
def test_processes_that_mpi_numbers_otherwise_are_refused(rank, size):
    world = World(rank, rank, size, size, launcher="poprun", job="poprun-77")
    with pytest.raises(ConfigError, match="start one poprun, and no mpirun around it"):
        check_poprun(plan(), world)


def test_a_host_target_trains_one_replica_a_process_whatever_poprun_says():
    check_poprun(Plan().replace({"target": "cpu"}), WORLD)


def test_popdist_is_asked_once_it_is_imported(monkeypatch):
    asked = {
        "getInstanceIndex": 1,
        "getNumInstances": 2,
        "getNumLocalReplicas": 8,
        "getNumTotalReplicas": 16,
        "getNumIpusPerReplica": 1,
    }
    module = SimpleNamespace(**{name: lambda value=value: value for name, value in asked.items()})
    monkeypatch.setitem(sys.modules, "popdist", module)
    check_poprun(plan(ipu__replicas_per_process=8), WORLD)
    with pytest.raises(PlanError, match=r"2 processes 8; set it to 8"):
        check_poprun(plan(), WORLD)


def test_a_session_under_poprun_does_not_begin_with_a_plan_that_contradicts_it():
    with pytest.raises(PlanError, match=r"replicas_per_process: got 4, but PopRun gives each"):
        join_plan(plan(ipu__replicas_per_process=4), world=None, argv=["train.py"])
    joined = join_plan(Plan().replace({"target": "cpu"}), world=None, argv=["train.py"])
    assert (joined.world.launcher, joined.plan.mesh.data) == ("poprun", 2)


def test_our_own_launcher_is_not_asked_about_poprun():
    check_poprun(plan(ipu__replicas_per_process=4), World(0, 0, 1, 1, launcher="none"))

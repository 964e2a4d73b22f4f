"""A process of PopRun: what it drives, and the backend that is started once."""

from __future__ import annotations

import sys

import pytest

from unified_ipu.errors import ConfigError
from unified_ipu.world import PopDist, join_popdist, read_popdist

# From a log of poprun (Poplar SDK 3.3): instance 1 of 2, four replicas of one IPU.
POPRUN = {
    "POPDIST_LOCAL_INSTANCE_INDEX": "1",
    "POPDIST_NUM_IPUS_PER_REPLICA": "1",
    "POPDIST_NUM_LOCAL_REPLICAS": "2",
    "POPDIST_NUM_TOTAL_REPLICAS": "4",
    "POPDIST_REPLICA_INDEX_OFFSET": "2",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
}
SECOND = PopDist(instance=1, instances=2, local_replicas=2, total_replicas=4, ipus_per_replica=1)


class FakePopdist:
    """The functions that the user guide lists, with a count of ``init``."""

    def __init__(self, *, started=False, **changes):
        self.started: bool = started
        self.inits = 0
        values = {
            "InstanceIndex": 2,
            "NumInstances": 3,
            "NumLocalReplicas": 4,
            "NumTotalReplicas": 12,
            "NumIpusPerReplica": 2,
            **changes,
        }
        for name, value in values.items():
            setattr(self, f"get{name}", lambda value=value: value)

    def isBackendInitialized(self):  # noqa: N802  # the SDK's name
        return self.started

    def init(self):
        assert not self.started, "the backend is started already"
        self.inits += 1
        self.started = True


def test_an_instance_is_read_from_the_variables_of_poprun():
    found = read_popdist(POPRUN)
    assert found == SECOND
    assert found.first_replica == 2


def test_nothing_is_read_outside_poprun():
    assert read_popdist({"OMPI_COMM_WORLD_RANK": "1"}) is None
    assert read_popdist({}, FakePopdist()) is None


def test_popdist_itself_is_asked_where_it_is_imported():
    found = read_popdist(POPRUN, FakePopdist())
    assert found == PopDist(
        instance=2, instances=3, local_replicas=4, total_replicas=12, ipus_per_replica=2
    )
    assert found.first_replica == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"POPDIST_NUM_LOCAL_REPLICAS": None}, r"POPDIST_NUM_LOCAL_REPLICAS is not"),
        ({"POPDIST_NUM_IPUS_PER_REPLICA": None}, r"POPDIST_NUM_IPUS_PER_REPLICA is not"),
        ({"POPDIST_NUM_TOTAL_REPLICAS": "four"}, r"'four' is not a whole number"),
        ({"POPDIST_NUM_LOCAL_REPLICAS": "0"}, r"choose --num-instances as a divisor"),
        ({"POPDIST_REPLICA_INDEX_OFFSET": "1"}, r"OFFSET=1 and .*=2: every process has to drive"),
        ({"POPDIST_NUM_TOTAL_REPLICAS": "5"}, r"5 replicas, this process drives 2 of them"),
        ({"POPDIST_REPLICA_INDEX_OFFSET": "4"}, r"instance 2 of 2"),
        ({"POPDIST_NUM_IPUS_PER_REPLICA": "0"}, r"2 replicas of 0 IPUs"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(changes, message):
    environ = {**POPRUN, **changes}
    with pytest.raises(ConfigError, match=message):
        read_popdist({name: value for name, value in environ.items() if value is not None})


def test_the_backend_is_started_once_in_a_process():
    popdist = FakePopdist()
    assert join_popdist(POPRUN, popdist) is popdist
    assert join_popdist(POPRUN, popdist) is popdist
    assert popdist.inits == 1


def test_a_backend_that_somebody_has_started_is_left_alone():
    popdist = FakePopdist(started=True)
    assert join_popdist(POPRUN, popdist) is popdist
    assert popdist.inits == 0


def test_outside_poprun_nothing_is_started():
    popdist = FakePopdist()
    assert join_popdist({}, popdist) is None
    assert popdist.inits == 0


def test_the_module_of_the_sdk_is_imported_where_none_is_given(monkeypatch):
    popdist = FakePopdist()
    monkeypatch.setitem(sys.modules, "popdist", popdist)
    assert join_popdist(POPRUN) is popdist
    assert popdist.inits == 1


def test_poprun_without_the_module_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "popdist", None)  # what makes an import fail
    with pytest.raises(ConfigError, match=r"popdist cannot be imported .*install the SDK's wheels"):
        join_popdist(POPRUN)

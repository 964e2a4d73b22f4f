"""Which transport a world gets."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from unified_ipu import Session
from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import CommsSettings, Plan
from unified_ipu.session import transports
from unified_ipu.session.transports import choose_transport, join_world
from unified_ipu.testing.threads import RanksFailedError, run_ranks
from unified_ipu.world import World

ONE_HOST = World(1, 1, 2, 2, job="x")
TWO_HOSTS = World(3, 1, 4, 2, node_rank=1, job="x")


@pytest.mark.parametrize(
    ("asked", "world", "chosen"),
    [
        ("auto", World(), "shm"),
        ("auto", ONE_HOST, "shm"),
        ("auto", TWO_HOSTS, "c10d"),
        ("shm", ONE_HOST, "shm"),
        ("c10d", ONE_HOST, "c10d"),
        ("c10d", TWO_HOSTS, "c10d"),
    ],
)
def test_auto_shares_memory_on_one_host_only(asked, world, chosen):
    assert choose_transport(asked, world) == chosen


def test_shared_memory_between_hosts_is_refused():
    with pytest.raises(PlanError, match=r'4 processes, 2 of them on this host.*"c10d"'):
        choose_transport("shm", TWO_HOSTS)


@pytest.mark.parametrize(
    ("algorithm", "world", "message"),
    [
        ("ring", ONE_HOST, '"ring" with 2 processes over "shm": ranks that share memory add up'),
        ("hierarchical", ONE_HOST, 'it joins several hosts, and all ranks are on one; set "auto"'),
    ],
)
def test_an_algorithm_that_does_not_fit_is_refused_before_ranks_meet(algorithm, world, message):
    with pytest.raises(PlanError, match=message):
        join_world(world, CommsSettings(algorithm=algorithm))


def test_one_process_has_nothing_to_sum():
    assert join_world(World(), CommsSettings(algorithm="ring")).size == 1


def test_a_transport_that_has_the_direct_way_only_says_so(monkeypatch):
    class Plain:
        def connect(self, **_):
            return self

        def close(self):
            self.is_closed = True

    plain: Any = Plain()
    monkeypatch.setattr(transports, "_load", lambda _: plain.connect)
    with pytest.raises(PlanError, match='"ring": this transport has "direct" only; set "auto"'):
        join_world(TWO_HOSTS, CommsSettings(algorithm="ring"))
    assert plain.is_closed
    assert join_world(TWO_HOSTS, CommsSettings()) is plain
    on_device = CommsSettings(algorithm="ring")  # refused by the plan there
    assert join_world(TWO_HOSTS, on_device, sums_gradients=False) is plain


def test_a_given_communicator_must_sum_as_the_plan_says():
    def rank(world, communicator):
        plan = {"mesh.data": 2, "comms.transport": "c10d", "comms.algorithm": "ring"}
        with Session(Plan().replace(plan), world=world, communicator=communicator, argv=[]):
            pass

    with pytest.raises(RanksFailedError, match=r'"ring".* given sums by "direct"; set "auto"'):
        run_ranks(2, rank)


def test_one_process_needs_no_transport(monkeypatch):
    monkeypatch.setattr(transports, "registered", lambda _: {})
    assert join_world(World(), CommsSettings(transport="c10d")).size == 1


def test_a_transport_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(transports, "registered", lambda _: {})
    with pytest.raises(ConfigError, match="'c10d' is not registered"):
        join_world(TWO_HOSTS, CommsSettings())


def test_a_transport_without_its_framework_says_what_to_install(monkeypatch):
    class Point:
        def load(self):
            raise ImportError("No module named 'torch'")

    monkeypatch.setattr(transports, "registered", lambda _: {"c10d": Point()})
    with pytest.raises(ConfigError, match=r"pip install 'unified-ipu\[torch\]'"):
        join_world(TWO_HOSTS, CommsSettings())


def test_a_process_alone_under_an_unknown_launcher_is_warned_once(monkeypatch, caplog):
    monkeypatch.setattr(
        "unified_ipu.session.joining.current_environment", lambda: {"PMI_SIZE": "4"}
    )
    with caplog.at_level(logging.WARNING, logger="unified_ipu.session"):
        with Session(argv=["train.py"]) as session:
            assert session.world_size == 1
    assert caplog.text.count("PMI_SIZE=4") == 1

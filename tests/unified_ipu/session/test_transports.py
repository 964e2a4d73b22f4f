"""Which transport a world gets."""

from __future__ import annotations

import logging

import pytest

from unified_ipu import Session
from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan import CommsSettings
from unified_ipu.session import transports
from unified_ipu.session.transports import choose_transport, join_world
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

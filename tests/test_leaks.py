"""The leak check sees the processes of its own run, and never those of another at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def check(request):
    plugins = request.config.pluginmanager
    found = plugins.get_plugin(str(Path(__file__).with_name("conftest.py")))
    assert found is not None
    return found


@pytest.fixture
def sleeper():
    """Return a function that starts a process with some variables; all end with the test."""
    started = []

    def start(**variables):
        child = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )
        started.append(child)
        assert child.stdout is not None
        child.stdout.readline()  # its environment is in place once it runs
        return child.pid

    yield start
    for child in started:
        child.communicate(b"\n", timeout=30)


@pytest.mark.timeout(60)
def test_a_process_that_a_test_started_is_seen(check, sleeper, request):
    pid = sleeper()
    assert pid in check._processes_of(f"{request.node.nodeid} (")
    assert pid not in check._processes_of("another test (")


@pytest.mark.timeout(60)
def test_the_same_test_in_another_run_is_not_seen(check, sleeper, request):
    # Also where the other run's number begins as ours does.
    others = {sleeper(PYTEST_RUN=f"{check.RUN}0"), sleeper(PYTEST_RUN="unified_ipu-1")}
    assert not others & set(check._processes_of(f"{request.node.nodeid} ("))


def test_the_mark_is_of_this_process(check):
    assert os.environ["PYTEST_RUN"] == check.RUN == f"unified_ipu-{os.getpid()}"

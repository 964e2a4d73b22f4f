"""Pytest hooks of the kit, re-exported by the front, which is the plugin itself."""

from __future__ import annotations

from typing import Any

import pytest

from unified_ipu.testing.clause_table import ClauseTable
from unified_ipu.testing.device_limits import NO_FLOAT64, limit_of
from unified_ipu.testing.float_types import float_type_of
from unified_ipu.testing.on_devices import is_device
from unified_ipu.testing.suite import AdapterSuite, support_of

ADAPTER = "--unified-ipu-adapter"
SUBJECT = "--unified-ipu-subject"
TARGET = "--unified-ipu-target"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what the command ``conformance`` hands over."""
    group = parser.getgroup("unified-ipu", "conformance of an installed adapter")
    group.addoption(ADAPTER, metavar="NAME", help="print a table by clause for this adapter")
    group.addoption(SUBJECT, metavar="MODULE:CLASS", help="instead of the registered subject")
    group.addoption(TARGET, metavar="TARGET", default="auto", help="where programs run")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks that suites use, and count by clause if a table is wanted."""
    for line in (
        "requires_capability(capability, ...): what an adapter must declare as usable",
        "holds(clause, ...): clauses that a test holds beside the one in its name",
        "case(id): a fault that people met in practice",
    ):
        config.addinivalue_line("markers", line)
    adapter = config.getoption(ADAPTER, default=None)
    if adapter:
        table = ClauseTable(adapter, config.getoption(TARGET))
        config.pluginmanager.register(table, "unified-ipu-clauses")


@pytest.fixture(autouse=True)
def requires_capability(request: pytest.FixtureRequest) -> None:
    """Skip what the adapter does not declare, and say at which level it stands."""
    marks = list(request.node.iter_markers("requires_capability"))
    if not marks:
        return
    subject: Any = request.getfixturevalue("subject")
    for mark in marks:
        for capability in mark.args:
            level = support_of(subject.adapter, capability)
            if not level.is_usable:
                pytest.skip(f"{subject.adapter} declares {capability.value} as {level.value}")


@pytest.fixture(autouse=True)
def held_on_devices(request: pytest.FixtureRequest) -> None:
    """Skip on a device what is declared not to hold there, with the declared reason."""
    is_ours = request.cls is not None and issubclass(request.cls, AdapterSuite)
    if not is_ours or "ranks" not in request.fixturenames:
        return
    ranks: Any = request.getfixturevalue("ranks")
    if not is_device(ranks):
        return
    limit = limit_of(
        request.getfixturevalue("subject"), request.node.originalname, request.node.name
    )
    wanted = getattr(request.node, "callspec", None)
    if limit is None and wanted is not None and wanted.params.get("dtype") == "float64":
        limit = None if float_type_of(ranks) == "float64" else NO_FLOAT64
    if limit is not None:
        pytest.skip(f"not held on {ranks.target}: {limit}")

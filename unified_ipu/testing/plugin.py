"""Pytest hooks of the kit, re-exported by the front, which is the plugin itself."""

from __future__ import annotations

from typing import Any

import pytest

from unified_ipu.testing.suite import support_of


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks that suites use."""
    config.addinivalue_line(
        "markers", "requires_capability(capability, ...): what an adapter must declare as usable"
    )
    config.addinivalue_line("markers", "case(id): a fault that people met in practice")


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

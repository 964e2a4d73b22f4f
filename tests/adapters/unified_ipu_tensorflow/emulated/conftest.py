"""The IPU system is the process's: each test leaves it as it was, for those of other folders."""

from __future__ import annotations

import pytest

from unified_ipu_tensorflow.emulated.ipu import config


@pytest.fixture(autouse=True)
def system_as_it_was(monkeypatch):
    monkeypatch.setattr(config, "_configured", list(config._configured))

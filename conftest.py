"""Loads the plugins of the test suite; only a root conftest may."""

from __future__ import annotations

pytest_plugins = ["pytester", "tests.honesty", "unified_ipu.testing"]

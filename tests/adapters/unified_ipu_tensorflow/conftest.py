"""Warm ranks that have imported TensorFlow, shared by the tests of this folder."""

from __future__ import annotations

import pytest

from unified_ipu.testing import WarmPool


@pytest.fixture(scope="session")
def warm_pool():
    with WarmPool(preload=["tensorflow"]) as pool:
        yield pool

"""What tests of ours and of adapters build on; the only room that imports pytest."""

from __future__ import annotations

from unified_ipu.testing.pool import WarmPool as WarmPool, warm_pool as warm_pool

__all__ = ["WarmPool", "warm_pool"]

"""Counters and clocks that every room may report to."""

from __future__ import annotations

from unified_ipu.events.clock import PhaseClock as PhaseClock
from unified_ipu.events.counters import Counters as Counters
from unified_ipu.events.plain import finite_or_none as finite_or_none

__all__ = ["Counters", "PhaseClock", "finite_or_none"]

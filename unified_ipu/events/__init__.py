"""Counters and clocks that every room may report to."""

from __future__ import annotations

from unified_ipu.events.clock import PhaseClock as PhaseClock
from unified_ipu.events.counters import Counters as Counters

__all__ = ["Counters", "PhaseClock"]

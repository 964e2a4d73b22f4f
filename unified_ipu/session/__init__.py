"""What users hold: sessions and programs."""

from __future__ import annotations

from unified_ipu.session.program import Program as Program
from unified_ipu.session.session import Session as Session

__all__ = ["Program", "Session"]

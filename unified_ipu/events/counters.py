"""Counts of what must never happen silently: drops, pads, copies, fallbacks."""

from __future__ import annotations

from typing import Dict


class Counters:
    """Named counts; reading returns a copy."""

    def __init__(self) -> None:
        self._counts: Dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Add ``count`` to ``name``."""
        self._counts[name] = self._counts.get(name, 0) + count

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def as_dict(self) -> Dict[str, int]:
        """All counts so far."""
        return dict(self._counts)

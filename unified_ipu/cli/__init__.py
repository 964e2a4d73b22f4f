"""The command line; its entry point is ``main`` in ``main.py``."""

from __future__ import annotations

from typing import List

__all__: List[str] = []

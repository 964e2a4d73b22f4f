"""What a compiled program takes: shapes and types that no later call may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple


@dataclass(frozen=True)
class Leaf:
    """One array of a call."""

    name: str
    shape: Tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Mismatch:
    """The first difference between what was compiled and what came.

    Args:
        kind: ``"count"``, ``"name"``, ``"dtype"`` or ``"shape"``.
        name: Of the array; empty for ``"count"``.
        expected: By the compiled program.
        given: By the call.
    """

    kind: str
    name: str
    expected: Any
    given: Any

    def __str__(self) -> str:
        where = f" of {self.name}" if self.name else ""
        return f"{self.kind}{where}: expected {self.expected} but got {self.given}"


def first_mismatch(expected: Sequence[Leaf], given: Sequence[Leaf]) -> Optional[Mismatch]:
    """Compare a call with the one that was compiled for; None if it fits."""
    if len(expected) != len(given):
        return Mismatch("count", "", len(expected), len(given))
    for one, other in zip(expected, given):
        for kind in ("name", "dtype", "shape"):
            want, got = getattr(one, kind), getattr(other, kind)
            if want != got:
                return Mismatch(kind, one.name, want, got)
    return None

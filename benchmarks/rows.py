"""What every benchmark prints and writes: one line and one record a comparison."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import List, Optional, Sequence


class Measure(str, Enum):
    """What the bar of a row limits."""

    RATIO = "peer / ours, at least"
    DIFFERENCE = "ours - peer, at most"
    MOST = "ours, at most"
    LEAST = "ours, at least"


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        row: What was measured, with its unit, and against what.
        ours: Our figure.
        peer: The other one's.
        bar: What has to be reached, or None.
        measure: What the bar limits.
    """

    row: str
    ours: float
    peer: float
    bar: Optional[float] = None
    measure: Measure = Measure.RATIO

    @property
    def ratio(self) -> float:
        """How many times the peer's figure is ours."""
        return self.peer / self.ours

    @property
    def is_met(self) -> Optional[bool]:
        """Whether the bar is reached; None without one."""
        if self.bar is None:
            return None
        if self.measure is Measure.RATIO:
            return self.ratio >= self.bar
        if self.measure is Measure.DIFFERENCE:
            return self.ours - self.peer <= self.bar
        return self.ours >= self.bar if self.measure is Measure.LEAST else self.ours <= self.bar


def show(row: Row) -> None:
    """Print one line."""
    result = f"difference {row.ours - row.peer:8.1f}"
    if row.measure is not Measure.DIFFERENCE:
        result = f"ratio {row.ratio:12.2f}x"
    limit = ""
    if row.bar is not None:
        limit = f"{'met' if row.is_met else 'MISSED'} ({row.measure.value} {row.bar:g})"
    print(f"{row.row:76} ours {row.ours:9.1f}  peer {row.peer:9.1f}  {result}  {limit}", flush=True)


def write(rows: Sequence[Row], path: Optional[Path]) -> None:
    """Write ``[{row, ours, peer, ratio, bar, ...}]`` as JSON, if a path was given."""
    if path is not None:
        records = [{**asdict(row), "ratio": row.ratio, "is_met": row.is_met} for row in rows]
        path.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


def paired(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Median of the differences of runs that took turns: what one costs more than the other."""
    differences: List[float] = [mine - other for mine, other in zip(ours, peer)]
    return statistics.median(differences)

"""What every benchmark prints and writes: one line and one record a comparison."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import List, Optional, Sequence


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        row: What was measured, with its unit.
        ours: Our figure.
        peer: The other one's.
        ratio: peer / ours, or ours - peer where the bar is a difference.
        bar: What the ratio has to reach, or must not exceed where it is a difference; None if the
            row has no bar.
        is_difference: Whether the bar is an upper limit of ``ours - peer``.
    """

    row: str
    ours: float
    peer: float
    ratio: float
    bar: Optional[float] = None
    is_difference: bool = False

    @property
    def is_met(self) -> Optional[bool]:
        """Whether the bar is reached; None without one."""
        if self.bar is None:
            return None
        return self.ratio <= self.bar if self.is_difference else self.ratio >= self.bar


def times_faster(row: str, ours: float, peer: float, bar: Optional[float] = None) -> Row:
    """A row whose bar is a factor: the peer needs ``ratio`` times as long."""
    return Row(row, ours, peer, peer / ours, bar)


def at_most(row: str, ours: float, peer: float, bar: Optional[float] = None) -> Row:
    """A row whose bar is a difference: ours may exceed the peer by ``bar``."""
    return Row(row, ours, peer, ours - peer, bar, is_difference=True)


def show(row: Row) -> None:
    """Print one line."""
    sign = "" if row.is_difference else "x"
    limit = "no bar"
    if row.bar is not None:
        limit = f"bar {'<=' if row.is_difference else '>='} {row.bar:g}{sign}"
        limit += "  met" if row.is_met else "  MISSED"
    what = "difference" if row.is_difference else "ratio"
    print(
        f"{row.row:66} ours {row.ours:10.1f}   peer {row.peer:10.1f}   "
        f"{what} {row.ratio:8.2f}{sign}   {limit}",
        flush=True,
    )


def write(rows: Sequence[Row], path: Optional[Path]) -> None:
    """Write ``[{row, ours, peer, ratio, bar, ...}]`` as JSON, if a path was given."""
    if path is not None:
        records = [{**asdict(row), "is_met": row.is_met} for row in rows]
        path.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")


def paired(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Median of the differences of runs that took turns: what one costs more than the other."""
    differences: List[float] = [mine - other for mine, other in zip(ours, peer)]
    return statistics.median(differences)

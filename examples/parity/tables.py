"""Two runs side by side: how far apart their updates and weights are, and how far they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping

import numpy as np

# Of the change that one update makes to a tensor, and of all weights after 50 updates (L5 in
# docs/laws.md). Longer runs drift apart by chaos.
BOUNDS = {"float32": (5e-5, 1e-4), "float64": (1e-12, 1e-12)}


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a run with a reference.

    Args:
        lines: A table, one line a tensor.
        largest: The largest relative difference, over both measures.
        is_close: Whether both measures are within their bounds.
    """

    lines: List[str]
    largest: float
    is_close: bool

    def __str__(self) -> str:
        verdict = "within rounding" if self.is_close else "MORE THAN ROUNDING"
        end = f"largest relative difference {self.largest:.1e}: {verdict}"
        return "\n".join([*self.lines, end])


def compare(run: Mapping[str, Any], reference: Mapping[str, Any], updates: int = 50) -> Comparison:
    """Compare the weights of two runs, by ``"<updates>/<name>"``, both with 0, 1 and ``updates``.

    Raises:
        ValueError: If they have other tensors.
    """
    if {n: v.shape for n, v in run.items()} != {n: v.shape for n, v in reference.items()}:
        raise ValueError(f"other tensors: {sorted(run)} and {sorted(reference)}")
    names = sorted(name[2:] for name in reference if name.startswith("0/"))
    dtype = str(reference[f"0/{names[0]}"].dtype)
    of_change, of_weights = BOUNDS[dtype]
    lines = [f"{'tensor':<16}{'shape':<18}{'change, 1 update':>18}{f'after {updates} updates':>20}"]
    changes = []
    for name in names:
        change = relative(
            run[f"1/{name}"] - run[f"0/{name}"], reference[f"1/{name}"] - reference[f"0/{name}"]
        )
        after = relative(run[f"{updates}/{name}"], reference[f"{updates}/{name}"])
        changes.append(change)
        shape = str(list(reference[f"0/{name}"].shape))
        lines.append(f"{name:<16}{shape:<18}{change:>18.1e}{after:>20.1e}")
    whole = relative(*(_joined(tensors, names, updates) for tensors in (run, reference)))
    lines.append(f"{'all weights':<34}{'':>18}{whole:>20.1e}")
    lines.append(f"{f'allowed, {dtype}':<34}{of_change:>18.1e}{of_weights:>20.1e}")
    is_close = max(changes) <= of_change and whole <= of_weights
    return Comparison(lines, max(*changes, whole), is_close)


def relative(left: Any, right: Any) -> float:
    """Norm of the difference by the norm of the second; 0 if both are 0."""
    difference = float(np.linalg.norm(np.asarray(left, np.float64) - right))
    size = float(np.linalg.norm(np.asarray(right, np.float64)))
    return difference / size if size else (0.0 if difference == 0.0 else float("inf"))


def _joined(tensors: Mapping[str, Any], names: List[str], updates: int) -> Any:
    return np.concatenate([np.ravel(tensors[f"{updates}/{name}"]) for name in names])

"""What one reduction of all gradients decided; the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional, Protocol, Tuple

import numpy as np


@dataclass(frozen=True)
class NonFinite:
    """Where the summed gradient is inf or nan.

    Args:
        tensor: The first such parameter, in the order of the bucket plan.
        ranks: Ranks whose own contribution to it is not finite; empty: all are finite, their sum
            overflowed.
    """

    tensor: str
    ranks: Tuple[int, ...]


@dataclass(frozen=True)
class Reduction:
    """The result of ``Reducer.reduce``.

    Args:
        header: Sum of the headers over all ranks, ``[header_size]`` float64.
        factor: What ``divide`` said; None: there is no update, nothing was summed.
        squared_norm: Of the divided gradient before clipping, in float64; nan if not finite, 0
            without an update.
        clipped: Whether the norm was above ``clip_norm``.
        non_finite: Set when no rank may apply the gradients.
    """

    header: np.ndarray
    factor: Optional[float]
    squared_norm: float = 0.0
    clipped: bool = False
    non_finite: Optional[NonFinite] = None


class GradientReducer(Protocol):
    """Gradients of one rank in flat buckets, and their sum over all ranks."""

    gradients: List[np.ndarray]

    @property
    def header(self) -> np.ndarray:
        """This rank's header for the next reduction, ``[header_size]`` float64, zeroed."""
        ...

    def reduce(
        self,
        *,
        contributes: bool,
        divide: Callable[[np.ndarray], Optional[float]],
        clip_norm: Optional[float] = None,
    ) -> Reduction:
        """Sum gradients and headers over ranks, divide and clip; collective."""
        ...

    def close(self) -> None:
        """Let go of the buffers."""
        ...

"""What all ranks agreed on about one update, and what comes to it."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

from unified_ipu.adapter import Tally, Update
from unified_ipu.comms import NonFinite

NO_METRICS: Mapping[str, Tuple[float, float]] = MappingProxyType({})


class Outcome(NamedTuple):
    """What all ranks agreed on about one update.

    Args:
        loss_sum: S over the world.
        weight: W over the world.
        samples: Real samples over the world.
        happened: Whether the optimizer may step.
        used: One flag a trained tensor: whether any rank used it.
        scale: What ``Replica.apply`` still has to multiply the gradients with.
        norm: Global norm of the divided gradient before clipping.
        metrics: ``{name: (sum, weight)}`` over the world.
        changed_metrics: Ranks whose metric names changed.
        non_finite: The first gradient that is not finite, or None.
    """

    loss_sum: float
    weight: float
    samples: int
    happened: bool
    used: Sequence[bool] = ()
    scale: float = 1.0
    norm: float = math.nan
    metrics: Mapping[str, Tuple[float, float]] = NO_METRICS
    changed_metrics: int = 0
    non_finite: Optional[NonFinite] = None


class GradientPath(Protocol):
    """From the gradients of one update's micro-batches to those the optimizer sees."""

    def scale(self, update: Update) -> float:
        """Return the factor every micro-batch's dS is multiplied with."""
        ...

    def finish(
        self,
        update: Update,
        tally: Tally,
        *,
        samples: int,
        ran: bool,
        metric_names: Optional[Sequence[str]],
    ) -> Outcome:
        """Reduce, divide and clip; collective."""
        ...

    def close(self) -> None:
        """Free what was allocated."""
        ...

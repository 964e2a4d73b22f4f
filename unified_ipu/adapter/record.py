"""What one call did, the same on every rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Tuple

from unified_ipu.events import finite_or_none


@dataclass(frozen=True)
class Record:
    """The result of ``Program.step``.

    On host targets the numbers came back with the reduction; a device adapter may return a
    subclass that fetches them when they are read.

    Args:
        update: Number of the last update of the call, counted over the life of the program.
        epoch: Of the loader that gave the call; 0 if the user passed the batch.
        samples: Real samples of the call over the world.
        loss_sum: S over the call and the world.
        weight: W over the call and the world.
        lr: First learning rate, its factor included, that held for the call.
        grad_norm: Of the last update that happened, after the division by W, before clipping; nan
            if none happened.
        skipped: Updates that did not happen, because W was 0 or the gradient overflowed.
        updates: Updates that happened.
        metric_sums: The objective's metrics over the call and the world, ``{name: (sum, weight)}``.
        seconds: Wall seconds of this rank by phase inside the call.
        loss_scale: What the next call begins with; 1 without a loss scale.
    """

    update: int
    epoch: int
    samples: int
    loss_sum: float
    weight: float
    lr: float
    grad_norm: float
    skipped: int
    updates: int
    metric_sums: Mapping[str, Tuple[float, float]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    loss_scale: float = 1.0

    @property
    def loss(self) -> float:
        """S / W over the call; nan if nothing counted."""
        return self.loss_sum / self.weight if self.weight else math.nan

    @property
    def metrics(self) -> Dict[str, float]:
        """The objective's metrics, sum / weight over the call; nan where nothing counted."""
        return {
            name: total / weight if weight else math.nan
            for name, (total, weight) in self.metric_sums.items()
        }

    def to_dict(self) -> Dict[str, Any]:
        """Plain values for a log; what is not finite is None."""
        values = {
            "update": self.update,
            "epoch": self.epoch,
            "samples": self.samples,
            "loss": self.loss,
            "weight": self.weight,
            "lr": self.lr,
            "grad_norm": self.grad_norm,
            "skipped": self.skipped,
            "loss_scale": self.loss_scale,
            "updates": self.updates,
            "metrics": self.metrics,
            "seconds": dict(self.seconds),
        }
        cleaned: Dict[str, Any] = finite_or_none(values)
        return cleaned

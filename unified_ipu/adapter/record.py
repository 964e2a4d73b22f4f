"""What one call did, the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping


@dataclass(frozen=True)
class Record:
    """The result of ``Program.step``.

    On host targets the numbers came back with the reduction; a device adapter may return a
    subclass that fetches them when they are read.

    Args:
        update: Number of the last update of the call, counted over the life of the program.
        epoch: Of the loader that gave the call; 0 if the user passed the batch.
        samples: Real samples of the call over the world.
        loss: S / W over the call; nan if nothing counted.
        weight: W over the call and the world.
        lr: First learning rate, its factor included, that held for the call.
        grad_norm: Of the last update that happened, after the division by W, before clipping.
        skipped: Updates that did not happen, because W was 0 or the gradient overflowed.
        updates: Updates that happened.
        metrics: The objective's metrics, sum / weight over the call.
        seconds: Wall seconds of this rank by phase, since the call before.
    """

    update: int
    epoch: int
    samples: int
    loss: float
    weight: float
    lr: float
    grad_norm: float
    skipped: int
    updates: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

"""The factor on every learning rate: scaling with the batch, warm-up, the user's callable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Optional

from unified_ipu.errors import ConfigError


@dataclass(frozen=True)
class LearningRateFactor:
    """Factor by the number of updates that have happened; skipped ones do not count.

    Args:
        scale: What ``update.lr_scaling`` gives for the global batch size.
        warmup_updates: Updates over which the factor rises linearly to its full size.
        schedule: The user's ``callable(update) -> factor``, or None.

    Source: gradual warm-up after Goyal et al., "Accurate, Large Minibatch SGD", 2017; the first
    of n warm-up updates has factor 1/n, the n-th factor 1.
    """

    scale: float = 1.0
    warmup_updates: int = 0
    schedule: Optional[Callable[[int], float]] = None

    def __call__(self, update: int) -> float:
        """Return the factor for the call that begins with update ``update`` (0 is the first).

        Raises:
            ConfigError: If the user's schedule does not return a finite number >= 0.
        """
        factor = self.scale
        if update < self.warmup_updates:
            factor *= (update + 1) / self.warmup_updates
        if self.schedule is not None:
            factor *= _checked(self.schedule(update), update)
        return factor


def _checked(value: object, update: int) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever the user's callable returned
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0.0:
        raise ConfigError(f"schedule({update}) returned {value!r}; expected a finite factor >= 0")
    return number

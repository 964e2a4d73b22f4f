"""The factor on the loss that keeps small gradients above what half precision rounds to 0.

Gradients are multiplied with it from the start of backward on, and divided by it once they are
reduced. An update whose reduced gradient is not finite does not happen, on any rank; a dynamic
scale is halved then, and doubled after a while without one.

Source: Micikevicius et al., "Mixed Precision Training", 2018; the numbers of the dynamic scale are
those of ``torch.amp.GradScaler``, its upper bound that of Apex.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Optional, Union

from unified_ipu.engine.rules import UpdateRules
from unified_ipu.errors import ConfigError

FIRST = 65536.0
LARGEST = 16777216.0
SMALLEST = 1.0
FACTOR = 2.0
GROWTH_INTERVAL = 2000


class LossScale:
    """The scale now and what it depends on; the same on every rank, since every decision is.

    In half precision a loss that counts many units a sample (tokens, pixels) must not overflow by
    their number alone: there dS is divided by a power of two near the largest W of an update so
    far. It is exact, and the sum of W divides it out again.

    Args:
        setting: ``"none"``, ``"dynamic"`` or a number.
        reference_weight: Stands for W until one is known, a power of two.
        is_reduced: Whether forward and backward run in half precision.
    """

    def __init__(
        self, setting: Union[str, float], reference_weight: float, *, is_reduced: bool
    ) -> None:
        self.value = _first(setting)
        self._is_dynamic = setting == "dynamic"
        self._can_skip = setting != "none"
        self._first_weight = reference_weight
        self._is_reduced = is_reduced
        self._largest_weight = 0.0
        self._updates = 0

    def seed(self, plain: float) -> float:
        """What dS is multiplied with, where without this class it were ``plain``."""
        if not self._is_reduced:
            return plain * self.value
        if self._largest_weight:
            return self.value / 2.0 ** round(math.log2(self._largest_weight))
        return self.value / self._first_weight

    @property
    def skips(self) -> bool:
        """Whether an update may be skipped now; false where no smaller scale is left to try."""
        return self._can_skip and not (self._is_dynamic and self.value <= SMALLEST)

    @property
    def was_tried(self) -> bool:
        """Whether there is a scale at all."""
        return self._can_skip

    def after(self, weight: float, *, happened: bool, overflowed: bool) -> None:
        """Take over what all ranks decided about an update.

        Args:
            weight: W over the world.
            happened: Whether the optimizer stepped.
            overflowed: Whether the gradient was not finite.
        """
        self._largest_weight = max(self._largest_weight, weight)
        if not self._is_dynamic:
            return
        if overflowed:
            self.value = max(self.value / FACTOR, SMALLEST)
            self._updates = 0
        elif happened:
            self._updates += 1
            if self._updates == GROWTH_INTERVAL:
                self.value = min(self.value * FACTOR, LARGEST)
                self._updates = 0

    def scalars(self) -> Dict[str, Any]:
        """State for a checkpoint, JSON values."""
        return {
            "value": self.value,
            "updates_since_change": self._updates,
            "largest_weight": self._largest_weight,
        }

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` gave; a fixed scale stays what the plan says.

        Raises:
            ConfigError: If it is no such state.
        """
        try:
            value, updates, weight = (float(scalars[name]) for name in self.scalars())
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the saved loss scale is damaged: {dict(scalars)}") from error
        if not (SMALLEST <= value <= LARGEST) and self._is_dynamic:
            raise ConfigError(
                f"the saved loss scale is {value}; expected one from {SMALLEST:g} to {LARGEST:g}"
            )
        self._largest_weight = weight
        if self._is_dynamic:
            self.value, self._updates = value, int(updates)


def loss_scale_of(rules: UpdateRules) -> Optional[LossScale]:
    """Return the scale of a program, or None where plain float32 needs none."""
    if not rules.is_reduced and rules.loss_scale == "none":
        return None
    return LossScale(rules.loss_scale, rules.reference_weight, is_reduced=rules.is_reduced)


def _first(setting: Union[str, float]) -> float:
    if isinstance(setting, str):
        return FIRST if setting == "dynamic" else 1.0
    return float(setting)

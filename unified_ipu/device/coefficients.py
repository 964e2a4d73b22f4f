"""The division of the update law for devices that only sum gradients.

A device adds gradients over micro-batches and replicas, so what it differentiates must be divided
already: by coefficients that are computed on the host before the call, when W is known. Then no
setting of the device's own reduction matters, whose defaults differ from one API to the next.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from unified_ipu.errors import ConfigError


def loss_coefficients(
    unit_weights: Any, *, reduction: str = "mean", total: Optional[float] = None
) -> np.ndarray:
    """What each row's loss is multiplied with, so that the sum over an update is the update's loss.

    Args:
        unit_weights: u_i of every row behind one update, over all processes if ``total`` is None;
            any shape; 0 for padding.
        reduction: The plan's: ``"mean"`` divides by W, ``"sum"`` does not.
        total: W over the world, if ``unit_weights`` are those of one process only.

    Returns:
        float64 coefficients of the same shape.

    Raises:
        ConfigError: If a weight is negative or not finite, or W is 0: such an update is taken out
            before it is fed.
    """
    weights = np.asarray(unit_weights, dtype=np.float64)
    if weights.size and (not np.isfinite(weights).all() or weights.min() < 0.0):
        raise ConfigError(
            "the weights of a loss must be finite and not negative; look at weight= or at the "
            "sample weights"
        )
    whole = float(weights.sum()) if total is None else float(total)
    if not whole > 0.0:
        raise ConfigError("an update whose rows all weigh 0 cannot be fed; leave it out")
    return weights if reduction == "sum" else weights / whole


def micro_batch_coefficient(
    weight: float, total: float, *, reduction: str = "mean", divided: bool
) -> float:
    """What the loss of a whole micro-batch is multiplied with.

    Args:
        weight: w_m, W of this micro-batch.
        total: W of the update over the world, above 0.
        reduction: The plan's.
        divided: Whether the loss is a mean, divided by w_m already, and not a sum.

    Raises:
        ConfigError: If ``total`` is not above 0.
    """
    if not total > 0.0:
        raise ConfigError(f"W of an update is {total}; such an update is left out, not fed")
    scale = weight if divided else 1.0
    return scale if reduction == "sum" else scale / total

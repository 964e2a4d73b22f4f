"""Errors of an update that are the same on all ranks, from what they agreed on."""

from __future__ import annotations

import math
from typing import Optional, Sequence

from unified_ipu.adapter import Update
from unified_ipu.engine.loss_scale import LossScale
from unified_ipu.engine.outcome import Outcome
from unified_ipu.errors import ConfigError, DataError, NumericsError


def check_outcome(
    update: Update,
    outcome: Outcome,
    metric_names: Optional[Sequence[str]],
    loss_scale: Optional[LossScale],
) -> None:
    """Refuse an update that may neither happen nor be skipped.

    Args:
        update: As this rank ran it.
        outcome: The same on every rank.
        metric_names: Of the first update, or None.
        loss_scale: Allows to skip an update whose gradient is not finite.

    Raises:
        ConfigError: If metrics changed their names.
        NumericsError: If W or the gradient is impossible.
        DataError: If the ranks ran other samples than those of one call.
    """
    number = update.number
    if outcome.changed_metrics:
        raise ConfigError(
            f"update {number}: the objective's metrics on {outcome.changed_metrics} rank(s) "
            f"are not {list(metric_names or ())} as in the first update; return the same "
            "names in every micro-batch"
        )
    if not math.isfinite(outcome.weight) or outcome.weight < 0.0:
        raise NumericsError(
            f"update {number}: the weight W of the loss is {outcome.weight}; expected a "
            "finite number >= 0. Look at weight= or the objective's weight"
        )
    if update.samples >= 0 and outcome.samples != update.samples:
        raise DataError(
            f"update {number}: the ranks ran {outcome.samples} samples, the plan has "
            f"{update.samples}; every rank must run the call of its own loader, and once: "
            "call.held() gives one that two programs can run"
        )
    bad = outcome.non_finite
    if bad is not None and (loss_scale is None or not loss_scale.skips):
        ranks = ", ".join(map(str, bad.ranks)) or "none alone, only in the sum"
        raise NumericsError(
            f"update {number}: the gradient of {bad.tensor!r} is not finite on rank(s) {ranks}; "
            f"nothing was changed. {_advice(loss_scale)}"
        )


def _advice(loss_scale: Optional[LossScale]) -> str:
    if loss_scale is None or not loss_scale.was_tried:
        return "Lower the learning rate or look at the loss"
    return (
        f"The loss scale is down to {loss_scale.value:g}, so it is not the scale that overflows: "
        "lower the learning rate, or look at the loss and the data"
    )

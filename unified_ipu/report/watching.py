"""Callbacks that watch a result of the evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Union

from unified_ipu.errors import ConfigError
from unified_ipu.report.callbacks import Callback, FitContext
from unified_ipu.report.summary import EpochSummary

_MODES = ("min", "max")


class Best:
    """The best value of one result so far.

    Args:
        metric: ``"loss"`` or a name of the fit's ``metrics=``.
        mode: Whether the smallest or the largest value is best.
        min_change: A value must be better by more than this to count.

    Raises:
        ConfigError: If ``mode`` or ``min_change`` cannot be meant.
    """

    def __init__(self, metric: str, *, mode: str, min_change: float = 0.0) -> None:
        if mode not in _MODES:
            raise ConfigError(f'mode={mode!r}; expected "min" or "max", where {metric!r} is best')
        if not min_change >= 0.0:
            raise ConfigError(f"min_change={min_change!r}; expected a number >= 0")
        self.metric = metric
        self.value = math.nan
        """So far; nan before the first."""
        self.epoch = -1
        """That had it; -1 before the first."""
        self._sign = 1.0 if mode == "min" else -1.0
        self._min_change = min_change

    def is_beaten_by(self, summary: EpochSummary) -> bool:
        """Whether an epoch has a better value, which is then kept; nan is never better.

        Raises:
            ConfigError: If the fit does not evaluate, or not this metric.
        """
        if self.metric not in summary.validation:
            known = ", ".join(summary.validation) or "nothing: pass validation= to fit"
            raise ConfigError(f"metric={self.metric!r} was not evaluated; the fit has {known}")
        value = summary.validation[self.metric]
        if math.isnan(value):
            return False
        gain = self._sign * (self.value - value)
        if math.isnan(self.value) or gain > self._min_change:
            self.value, self.epoch = value, summary.epoch
            return True
        return False

    def forget(self) -> None:
        """Begin anew."""
        self.value, self.epoch = math.nan, -1

    def state(self) -> Dict[str, Any]:
        """For a checkpoint, as JSON values."""
        return {"value": self.value if math.isfinite(self.value) else None, "epoch": self.epoch}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.value = math.nan if state["value"] is None else float(state["value"])
        self.epoch = int(state["epoch"])


class EarlyStop(Callback):
    """End the fit once a result of the evaluation has not improved for some epochs.

    What it has seen is in the checkpoints of the fit, so a resumed run stops where an unbroken one
    would have.

    Args:
        metric: ``"loss"`` or a name of the fit's ``metrics=``.
        patience: Epochs without improvement after which the fit ends, at least 1.
        mode: ``"min"`` or ``"max"``: what is better.
        min_change: Smaller improvements do not count.

    Raises:
        ConfigError: If an argument cannot be meant.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        patience: int = 3,
        mode: str = "min",
        min_change: float = 0.0,
    ) -> None:
        if type(patience) is not int or patience < 1:
            raise ConfigError(f"patience={patience!r}; expected a number of epochs >= 1")
        self._best = Best(metric, mode=mode, min_change=min_change)
        self._patience = patience
        self._waited = 0
        self._is_resumed = False

    def on_fit_start(self, context: FitContext) -> None:
        """Begin anew; if the resumed run had ended here, end again."""
        if not self._is_resumed:
            self._best.forget()
            self._waited = 0
        elif self._waited >= self._patience:
            context.stop(self._reason())
        self._is_resumed = False

    def on_epoch_end(self, context: FitContext, summary: EpochSummary) -> None:
        """Compare, and ask to stop when patience is at its end."""
        if self._best.is_beaten_by(summary):
            self._waited = 0
            return
        self._waited += 1
        if self._waited >= self._patience:
            context.stop(self._reason())

    def state(self) -> Dict[str, Any]:
        """For a checkpoint, as JSON values."""
        return {**self._best.state(), "waited": self._waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self._best.load_state(state)
        self._waited = int(state["waited"])
        self._is_resumed = True

    def _reason(self) -> str:
        since = "never a number"
        if self._best.epoch >= 0:
            since = f"since {self._best.value:.4g} in epoch {self._best.epoch + 1}"
        epochs = "1 epoch" if self._patience == 1 else f"{self._patience} epochs"
        return f"validation {self._best.metric} no better for {epochs}, {since}"


class BestCheckpoint(Callback):
    """Save the program whenever a result of the evaluation is the best so far.

    Only the last one is kept; ``program.restore(folder)`` loads it. What it has seen is in the
    checkpoints of the fit, so a resumed run overwrites the best one only with a better one.

    Args:
        folder: For nothing else: not the one of ``fit(checkpoint=)``.
        metric: ``"loss"`` or a name of the fit's ``metrics=``.
        mode: ``"min"`` or ``"max"``: what is better.

    Raises:
        ConfigError: If ``mode`` is neither.
    """

    def __init__(
        self, folder: Union[str, Path], metric: str = "loss", *, mode: str = "min"
    ) -> None:
        self.path: Optional[Path] = None
        """The folder of the last checkpoint it has written."""
        self._folder = Path(folder)
        self._best = Best(metric, mode=mode)
        self._is_resumed = False

    def on_fit_start(self, context: FitContext) -> None:
        """Begin anew, unless the fit is resumed."""
        del context
        if not self._is_resumed:
            self._best.forget()
        self._is_resumed = False

    def on_epoch_end(self, context: FitContext, summary: EpochSummary) -> None:
        """Compare, and save; collective."""
        if self._best.is_beaten_by(summary):
            self.path = context.program.save(self._folder, keep=1)

    def state(self) -> Dict[str, Any]:
        """For a checkpoint, as JSON values."""
        return self._best.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self._best.load_state(state)
        self._is_resumed = True

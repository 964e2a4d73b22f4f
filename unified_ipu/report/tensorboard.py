"""Curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Dict, Optional, Union

from unified_ipu.adapter import Record
from unified_ipu.report.callbacks import Callback, FitContext
from unified_ipu.report.event_file import EventFile
from unified_ipu.report.summary import EpochSummary, Summary


class TensorBoard(Callback):
    """Loss, learning rate, gradient norm and metrics a call and an epoch, written on rank 0.

    Needs neither TensorBoard nor TensorFlow where the training runs. The horizontal axis is the
    number of updates. Writing must not end a training: when it fails (disk full), this is logged
    once and the rest is given up.

    Args:
        folder: Of this run; made if needed.
    """

    def __init__(self, folder: Union[str, Path]) -> None:
        self._folder = Path(folder)
        self._file: Optional[EventFile] = None
        self._update = 0
        self._called = 0.0

    def on_fit_start(self, context: FitContext) -> None:
        """Open the file; a folder that cannot be written to is an error here, before training."""
        if context.is_first:
            self._file = EventFile(self._folder)
            self._called = perf_counter()

    def on_call_end(self, context: FitContext, record: Record) -> None:
        """Write the record."""
        del context
        if self._file is None:
            return
        self._update = record.update + 1
        now = perf_counter()
        values: Dict[str, float] = {
            "train/loss": record.loss,
            "train/learning_rate": record.lr,
            "train/gradient_norm": record.grad_norm,
            "train/samples_per_second": record.samples / max(now - self._called, 1e-9),
            **{f"train/{name}": value for name, value in record.metrics.items()},
        }
        self._called = now
        self._file.add(self._update, values)

    def on_epoch_end(self, context: FitContext, summary: EpochSummary) -> None:
        """Write the epoch and the last evaluation."""
        del context
        if self._file is None:
            return
        values = {"epoch/loss": summary.loss, "epoch/skipped_updates": float(summary.skipped)}
        values.update({f"epoch/{name}": value for name, value in summary.metrics.items()})
        values.update({f"validation/{name}": value for name, value in summary.validation.items()})
        self._file.add(self._update, values)
        self._file.flush()
        self._called = perf_counter()  # evaluation is no part of the speed of a call

    def on_fit_end(self, context: FitContext, summary: Optional[Summary]) -> None:
        """Close the file."""
        del context, summary
        if self._file is not None:
            self._file.close()
            self._file = None

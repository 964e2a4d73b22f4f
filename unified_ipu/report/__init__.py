"""What a run tells: progress, records, summaries."""

from __future__ import annotations

from unified_ipu.report.callbacks import (
    Callback as Callback,
    FitContext as FitContext,
    JsonLines as JsonLines,
    Progress as Progress,
)
from unified_ipu.report.summary import EpochSummary as EpochSummary, Summary as Summary
from unified_ipu.report.tensorboard import TensorBoard as TensorBoard
from unified_ipu.report.watching import (
    BestCheckpoint as BestCheckpoint,
    EarlyStop as EarlyStop,
)

__all__ = [
    "BestCheckpoint",
    "Callback",
    "EarlyStop",
    "EpochSummary",
    "FitContext",
    "JsonLines",
    "Progress",
    "Summary",
    "TensorBoard",
]

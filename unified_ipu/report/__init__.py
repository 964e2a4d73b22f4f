"""What a run tells: progress, records, summaries."""

from __future__ import annotations

from unified_ipu.report.callbacks import (
    Callback as Callback,
    FitContext as FitContext,
    JsonLines as JsonLines,
    Progress as Progress,
)
from unified_ipu.report.doctor import (
    Diagnosis as Diagnosis,
    Finding as Finding,
    diagnose as diagnose,
    doctor as doctor,
)
from unified_ipu.report.sdk import missing_for_ipus as missing_for_ipus
from unified_ipu.report.summary import EpochSummary as EpochSummary, Summary as Summary
from unified_ipu.report.tensorboard import TensorBoard as TensorBoard
from unified_ipu.report.watching import (
    BestCheckpoint as BestCheckpoint,
    EarlyStop as EarlyStop,
)

__all__ = [
    "BestCheckpoint",
    "Callback",
    "Diagnosis",
    "EarlyStop",
    "EpochSummary",
    "Finding",
    "FitContext",
    "JsonLines",
    "Progress",
    "Summary",
    "TensorBoard",
    "diagnose",
    "doctor",
    "missing_for_ipus",
]

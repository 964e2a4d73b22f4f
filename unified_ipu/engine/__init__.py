"""The update loop, on hosts and on devices."""

from __future__ import annotations

from unified_ipu.engine.device import DeviceExecutor as DeviceExecutor
from unified_ipu.engine.header import merge_metrics as merge_metrics, ratio as ratio
from unified_ipu.engine.host import HostExecutor as HostExecutor, trained_tensors as trained_tensors
from unified_ipu.engine.learning_rate import LearningRateFactor as LearningRateFactor
from unified_ipu.engine.random_keys import micro_batch_key as micro_batch_key
from unified_ipu.engine.renaming import RenamedReplica as RenamedReplica
from unified_ipu.engine.rounds import empty_like as empty_like, form_of as form_of
from unified_ipu.engine.rules import UpdateRules as UpdateRules

__all__ = [
    "DeviceExecutor",
    "HostExecutor",
    "LearningRateFactor",
    "RenamedReplica",
    "UpdateRules",
    "empty_like",
    "form_of",
    "merge_metrics",
    "micro_batch_key",
    "ratio",
    "trained_tensors",
]

"""``keras.ipu`` without IPUs; the methods of models come with ``IPUStrategy.scope``."""

from __future__ import annotations

from unified_ipu_tensorflow.emulated.keras.options import (
    ReplicatedMetricReductionMethod as ReplicatedMetricReductionMethod,
)
from unified_ipu_tensorflow.emulated.notes import refuse_others

__emulated__ = True
__ipu__built__ = True
__all__ = ["ReplicatedMetricReductionMethod"]
__getattr__ = refuse_others("keras.ipu")

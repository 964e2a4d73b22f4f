"""``tensorflow.python.ipu.ops.pipelining_ops``: the words of ``set_pipelining_options``.

Pipelines of Keras compute what the model computes without one; the op itself is not here.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/ops/pipelining_ops.py``.
"""

from __future__ import annotations

import enum

from unified_ipu_tensorflow.emulated.notes import refuse_others


class PipelineSchedule(enum.IntEnum):
    """In which order stages work."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    """How activations are computed again for backward."""

    Auto = "Auto"
    RecomputeThenBackpropagate = "RecomputeThenBackpropagate"
    RecomputeAndBackpropagateInterleaved = "RecomputeAndBackpropagateInterleaved"


__getattr__ = refuse_others("tensorflow.python.ipu.ops.pipelining_ops")

"""``tensorflow.python.ipu`` without IPUs: what unified_ipu's lowering calls, and its checks.

It computes with the host's TensorFlow: Keras 2.6, which the SDK has, or a newer one.
"""

from __future__ import annotations

from unified_ipu_tensorflow.emulated.ipu import (
    config as config,
    distributed as distributed,
    gradient_accumulation as gradient_accumulation,
    ipu_strategy as ipu_strategy,
    ops as ops,
    seeding as utils,
)
from unified_ipu_tensorflow.emulated.ipu.ops import pipelining_ops as pipelining_ops
from unified_ipu_tensorflow.emulated.notes import refuse_others

__emulated__ = True
__all__ = [
    "config",
    "distributed",
    "gradient_accumulation",
    "ipu_strategy",
    "ops",
    "pipelining_ops",
    "utils",
]
__getattr__ = refuse_others("tensorflow.python.ipu")

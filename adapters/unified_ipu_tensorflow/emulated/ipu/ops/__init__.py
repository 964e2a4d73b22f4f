"""``tensorflow.python.ipu.ops``: of its modules the emulation has ``pipelining_ops``."""

from __future__ import annotations

from unified_ipu_tensorflow.emulated.ipu.ops import pipelining_ops as pipelining_ops
from unified_ipu_tensorflow.emulated.notes import refuse_others

__getattr__ = refuse_others("tensorflow.python.ipu.ops")

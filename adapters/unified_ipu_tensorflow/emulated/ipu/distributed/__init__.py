"""``tensorflow.python.ipu.distributed``: of its modules the emulation has ``popdist_strategy``."""

from __future__ import annotations

from unified_ipu_tensorflow.emulated.ipu.distributed import popdist_strategy as popdist_strategy
from unified_ipu_tensorflow.emulated.notes import refuse_others

__getattr__ = refuse_others("tensorflow.python.ipu.distributed")

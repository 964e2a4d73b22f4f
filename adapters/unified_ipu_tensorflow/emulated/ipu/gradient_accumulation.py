"""``tensorflow.python.ipu.gradient_accumulation``: how accumulated gradients are reduced.

Source: Graphcore's TensorFlow of SDK 3.4, ``python/ipu/gradient_accumulation.py``.
"""

from __future__ import annotations

import enum
from typing import Any


class GradientAccumulationReductionMethod(enum.Enum):
    """Over the micro-batches of one replica; replicas are always summed."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse(cls, value: Any) -> GradientAccumulationReductionMethod:
        """The member, or the one of that name in any case.

        Raises:
            ValueError: If there is none.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        names = ", ".join(cls.__members__)
        raise ValueError(
            f"Cannot parse {value} as a GradientAccumulationReductionMethod; valid are {names}"
        )

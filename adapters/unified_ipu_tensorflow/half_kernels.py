"""Rounding of buckets in half precision by TensorFlow, which is faster at it than numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Buffer
from unified_ipu.comms import NumpyKernels


class HalfKernels(NumpyKernels):
    """Numpy's kernels, but for conversions between half precision and others.

    Rounds to nearest, ties to even, as numpy's do.
    """

    def cast(self, buffer: Buffer, out: Buffer) -> None:
        """Copy into a buffer of another dtype."""
        if not (is_half(buffer) or is_half(out)):
            super().cast(buffer, out)
        elif np.uint16 in {buffer.dtype.type, out.dtype.type}:
            np.copyto(as_half(out), as_half(buffer), casting="unsafe")
        else:
            with tf.device("CPU:0"):
                np.copyto(out, np.asarray(tf.cast(tf.constant(buffer), out.dtype)))


def is_half(buffer: Any) -> bool:
    """Whether a bucket's numbers are float16, or bfloat16, which numpy keeps as uint16."""
    return bool(buffer.dtype.itemsize == 2)  # noqa: PLR2004 bytes


def as_half(buffer: Any) -> Any:
    """The same memory under the type that TensorFlow gives numpy for bfloat16."""
    is_bfloat16 = buffer.dtype == np.uint16
    return buffer.view(tf.bfloat16.as_numpy_dtype) if is_bfloat16 else buffer

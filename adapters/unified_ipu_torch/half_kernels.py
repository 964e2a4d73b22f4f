"""Rounding of buckets in half precision by torch, which has processor instructions for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unified_ipu.adapter import Buffer
from unified_ipu.comms import NumpyKernels


class HalfKernels(NumpyKernels):
    """Numpy's kernels, but for conversions between half precision and others.

    Rounds to nearest, ties to even, as numpy's do.
    """

    def cast(self, buffer: Buffer, out: Buffer) -> None:
        """Copy into a buffer of another dtype."""
        if is_half(buffer) or is_half(out):
            as_tensor(out).copy_(as_tensor(buffer))
        else:
            super().cast(buffer, out)


def is_half(buffer: Any) -> bool:
    """Whether a bucket's numbers are float16, or bfloat16, which numpy keeps as uint16."""
    return bool(buffer.dtype.itemsize == 2)  # noqa: PLR2004 bytes


def as_tensor(buffer: Any) -> torch.Tensor:
    """A tensor over the memory of a bucket."""
    if buffer.dtype == np.uint16:
        return torch.from_numpy(buffer.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(buffer)

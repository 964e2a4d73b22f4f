"""Numpy's arithmetic on flat buffers.

Numpy has no bfloat16, so such a buffer is a uint16 array of its bits. Its own float16 arithmetic
is some ten times slower than a detour through float32, so there is none here.
"""

from __future__ import annotations

import math
import sys
from typing import Dict

import numpy as np

from unified_ipu.comms.kernels import Buffer

_LINE_BYTES = 64
_BLOCK = 8192  # float32 squares are added up in blocks of this many, the blocks in float64
_TINY = 1e-30  # below this, float32 squares may have been rounded to 0
_HALF_CHARS = "eH"  # float16 and uint16; the name of a dtype takes microseconds to make
_PLAIN_CHARS = "fdg"
_STORED_AS: Dict[str, str] = {"bfloat16": "uint16"}


def stored_dtype(dtype: str) -> np.dtype:
    """Numpy dtype of a buffer whose elements are called ``dtype``."""
    return np.dtype(_STORED_AS.get(dtype, dtype))


class NumpyKernels:
    """``Kernels`` on numpy arrays."""

    def allocate(self, num_elements: int, dtype: str) -> Buffer:
        """Return a zeroed buffer, 64-byte aligned."""
        kind = stored_dtype(dtype)
        nbytes = num_elements * kind.itemsize
        room = np.zeros(nbytes + _LINE_BYTES, np.uint8)
        first = -int(room.__array_interface__["data"][0]) % _LINE_BYTES
        return room[first : first + nbytes].view(kind)

    def zero(self, buffer: Buffer) -> None:
        """Set all elements to 0."""
        buffer.fill(0)

    def add(self, left: Buffer, right: Buffer, out: Buffer) -> None:
        """Write ``left + right`` to ``out``."""
        if _is_half(out):
            self.cast(_widened(left) + _widened(right), out)
        else:
            np.add(left, right, out=out)

    def scale(self, buffer: Buffer, factor: float, out: Buffer) -> None:
        """Write ``buffer * factor`` to ``out``; the product is rounded to the buffer's dtype."""
        if _is_half(buffer) or _is_half(out):
            self.cast(_widened(buffer) * np.float32(factor), out)
        else:
            np.multiply(buffer, buffer.dtype.type(factor), out=out)

    def cast(self, buffer: Buffer, out: Buffer) -> None:
        """Copy into a buffer of another dtype."""
        if out.dtype == np.uint16 and buffer.dtype != np.uint16:
            out[...] = _to_bfloat16(buffer)
        elif buffer.dtype == np.uint16 and out.dtype != np.uint16:
            out[...] = _widened(buffer)
        else:
            np.copyto(out, buffer, casting="unsafe")

    def squared_norm(self, buffer: Buffer) -> float:
        """Sum of squares in float64; not finite exactly if an element is not finite."""
        values = _widened(buffer)
        if values.dtype.char == "f":
            fast = _blocked_norm(values)
            if _TINY < fast < math.inf or (fast <= _TINY and not values.any()):
                return fast
            # Squares that are too large or too small for float32 are not for float64.
            values = values.astype(np.float64)
        exact = float(np.einsum("i,i->", values, values))
        if not math.isfinite(exact) and not self.count_non_finite(values):
            return sys.float_info.max
        return exact

    def count_non_finite(self, buffer: Buffer) -> int:
        """Number of elements that are inf or nan."""
        values = buffer if buffer.dtype.kind == "c" else _widened(buffer)
        return int(values.size - np.count_nonzero(np.isfinite(values)))


def _blocked_norm(values: np.ndarray) -> float:
    # Blocks are short enough that BLAS, for a dot product, starts no threads in every rank.
    if values.size <= _BLOCK:
        return float(np.dot(values, values))
    total = 0.0
    for first in range(0, values.size, _BLOCK):
        block = values[first : first + _BLOCK]
        total += float(np.dot(block, block))
    return total


def _is_half(buffer: np.ndarray) -> bool:
    return buffer.dtype.char in _HALF_CHARS


def _widened(buffer: np.ndarray) -> np.ndarray:
    """The values as float32 if they are halves, as their two parts if complex, else as they are."""
    char = buffer.dtype.char
    if char in _PLAIN_CHARS:
        return buffer
    if char == "e":
        return buffer.astype(np.float32)
    if char == "H":
        return (buffer.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return buffer.view(buffer.real.dtype)


def _to_bfloat16(buffer: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, ties to even; a nan stays one."""
    values = np.ascontiguousarray(buffer, dtype=np.float32)
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)

"""Arithmetic on the buffers that travel between ranks: the Protocol, and numpy's version."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

Buffer = Any  # a flat array of one dtype; numpy in the core, whatever the adapter uses elsewhere


@runtime_checkable
class Kernels(Protocol):
    """What a reducer needs to do with flat buffers; an adapter may bring faster ones.

    They are called inside ``numpy.errstate(all="ignore")``: what is not finite is counted.
    """

    def allocate(self, num_elements: int, dtype: str) -> Buffer:
        """Return a zeroed buffer, 64-byte aligned."""
        ...

    def zero(self, buffer: Buffer) -> None:
        """Set all elements to 0."""
        ...

    def add(self, left: Buffer, right: Buffer, out: Buffer) -> None:
        """Write ``left + right`` to ``out``."""
        ...

    def scale(self, buffer: Buffer, factor: float, out: Buffer) -> None:
        """Write ``buffer * factor`` to ``out``; the product is rounded to the buffer's dtype."""
        ...

    def cast(self, buffer: Buffer, out: Buffer) -> None:
        """Copy into a buffer of another dtype."""
        ...

    def squared_norm(self, buffer: Buffer) -> float:
        """Sum of squares in float64; not finite exactly if an element is not finite."""
        ...

    def count_non_finite(self, buffer: Buffer) -> int:
        """Number of elements that are inf or nan."""
        ...

"""What a loader reads from: the Protocol of sources that are asked for rows by id."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

Tree = Any


@runtime_checkable
class Source(Protocol):
    """Samples with random access, read in the rank's own process."""

    @property
    def size(self) -> int:
        """Number of samples."""
        ...

    def fetch(self, ids: np.ndarray) -> Tree:
        """Return the rows of ``ids`` ``[n]``: a tree of new, contiguous, writable arrays."""
        ...

"""Where the rows of a micro-batch come from: the rank itself, or the data process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Protocol, Tuple

import numpy as np

from unified_ipu.data.schedule import Portion
from unified_ipu.data.source import Source, Tree
from unified_ipu.errors import DataError


@dataclass(frozen=True)
class Delivery:
    """The rows of one micro-batch.

    Args:
        row_ids: Ids that came with the rows, int64 ``[rows]``, those of padding rows included.
        tree: The rows: new, writable, contiguous arrays, ``[rows, ...]`` each.
    """

    row_ids: np.ndarray
    tree: Tree


class Feed(Protocol):
    """Delivers the micro-batches of one replica, pass after pass."""

    is_spread: bool
    """Whether other replicas read their samples on another host."""

    def begin(self, epoch: int, start_update: int) -> None:
        """Start a pass; what is left of the pass before is forgotten."""
        ...

    def read(self, portion: Portion) -> Delivery:
        """Return the rows of ``portion``; portions come in order, some may be left out."""
        ...

    def extent(self, samples: int) -> Tuple[int, bool]:
        """Wait until it is known whether the pass has ``samples`` samples.

        Returns how many it has for certain, and whether there are no more.
        """
        ...

    def close(self) -> None:
        """Free what was opened; may be called twice."""
        ...


class DirectFeed:
    """Reads a source in the rank's own process."""

    is_spread = False

    def __init__(self, source: Source) -> None:
        self._source: Optional[Source] = source

    def begin(self, epoch: int, start_update: int) -> None:
        """Nothing has to be started."""

    def read(self, portion: Portion) -> Delivery:
        """Fetch the rows of ``portion`` by id.

        Raises:
            DataError: If the feed is closed.
        """
        if self._source is None:
            raise DataError("a micro-batch was asked for after its loader was closed")
        return Delivery(portion.row_ids, self._source.fetch(portion.row_ids))

    def extent(self, samples: int) -> Tuple[int, bool]:  # noqa: ARG002 - of the Protocol
        """All samples are known from the beginning."""
        return (0 if self._source is None else self._source.size), True

    def close(self) -> None:
        """Let go of the source."""
        self._source = None

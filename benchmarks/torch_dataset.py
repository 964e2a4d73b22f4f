"""The tf.data pipeline as a torch ``IterableDataset``, for a ``DataLoader`` worker."""

from __future__ import annotations

from typing import Any, Iterator

from feed_pipeline import Batches
from torch.utils.data import IterableDataset


class TorchBatches(IterableDataset[Any]):
    """Batches of numpy arrays; each is built in the worker.

    Args:
        label: One of ``feed_pipeline.SHAPES``.
        count: Batches in one pass.
    """

    def __init__(self, label: str, count: int) -> None:
        self._batches = Batches(label, count)

    def __iter__(self) -> Iterator[Any]:
        """Run through it once."""
        return iter(self._batches)

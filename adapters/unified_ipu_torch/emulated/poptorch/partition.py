"""The part of a data set that one of several processes reads.

Source: PopTorch 3.4, ``python/__init__.py`` (``_SubDataset``).
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils.data import Dataset

from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.options import Options


class SubDataset(Dataset[Any]):
    """One contiguous block a process, of the data set or of a permutation of it.

    What changes between epochs lies in shared memory, so that workers that live on see it.

    Args:
        dataset: The whole; it has a length and takes an index.
        options: Which process this is, and the seed of the permutation.
        step: Samples of one call of a process.
        drop_last: Give every process the same number of whole calls; otherwise all samples go to
            some process.
        shuffle: Draw a permutation each epoch, the same in all processes.

    Raises:
        AssertionError: If it is to be shuffled and there is no seed.
        Error: If there is not one call for every process.
    """

    def __init__(
        self, dataset: Any, options: Options, step: int, *, drop_last: bool, shuffle: bool
    ) -> None:
        num_samples = len(dataset)
        processes, index = options.Distributed.numProcesses, options.Distributed.processId
        if drop_last:
            self._length = step * (num_samples // (step * processes))
            if not self._length:
                raise Error(
                    f"{num_samples} samples are less than one call of {step} for each of "
                    f"{processes} processes; lower one of them, or use drop_last=False"
                )
            self._base = index * self._length
            self._leftovers = num_samples % self._length
        else:
            even, more = divmod(num_samples, processes)
            self._length = even + (index < more)
            self._base = index * even + min(index, more)
            self._leftovers = 0
        self._dataset = dataset
        self._is_shifted = _shared(torch.zeros(1, dtype=torch.bool))
        self._order: Optional[torch.Tensor] = None
        self._generator = torch.Generator()
        if shuffle:
            require(
                options.exists("random_seed"),
                "When using auto_distributed_partitioning you must set "
                "poptorch.Options.randomSeed() to ensure that tensors are in the same order in "
                "all processes.",
            )
            self._generator.manual_seed(options.random_seed)
            self._order = _shared(torch.arange(num_samples))

    def start_epoch(self) -> None:
        """Draw the next permutation, and take the samples left over before every second time."""
        if self._order is not None:
            self._order.copy_(torch.randperm(len(self._order), generator=self._generator))
            self._is_shifted.logical_not_()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(f"index {index} is outside the {self._length} samples of the process")
        position = index + self._base
        if bool(self._is_shifted):
            position += self._leftovers
        if self._order is not None:
            position = int(self._order[position])
        return self._dataset[position]

    def __getstate__(self) -> Any:
        # A generator cannot be pickled, and only the parent draws.
        return {name: value for name, value in vars(self).items() if name != "_generator"}


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.share_memory_()  # type: ignore[no-untyped-call, no-any-return]  # torch's lack

"""``poptorch.DataLoader``: torch's loader that gives the samples of a whole call at once.

Source: PopTorch 3.4, ``python/__init__.py``.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional

import torch
from torch.utils.data import IterableDataset

from unified_ipu.world import usable_cores
from unified_ipu_torch.emulated.poptorch.accessor import AsynchronousDataAccessor
from unified_ipu_torch.emulated.poptorch.enums import DataLoaderMode
from unified_ipu_torch.emulated.poptorch.errors import Error, require
from unified_ipu_torch.emulated.poptorch.log import logger
from unified_ipu_torch.emulated.poptorch.options import Options
from unified_ipu_torch.emulated.poptorch.partition import SubDataset
from unified_ipu_torch.emulated.poptorch.structures import flatten, rebuild


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Gives batches of ``batch_size`` x device iterations x accumulation x replicas rows.

    Args:
        options: Of the model that takes the batches; frozen from here on.
        dataset: As for torch.
        batch_size: Rows of one replica's micro-batch; None switches batching off.
        shuffle: As for torch.
        num_workers: As for torch; data sets that take an index get no more than there are cores.
        drop_last: Leave out the samples behind the last whole call, unlike torch by default.
        persistent_workers: None means: if there are workers.
        auto_distributed_partitioning: Give each of several processes its own part.
        mode: Whether batches are read ahead.
        async_options: Arguments of the ``AsynchronousDataAccessor``.
        rebatched_worker_size: In mode AsyncRebatched, rows that a worker gives at once.
        batch_sampler: Gives the indices of micro-batches.
        kwargs: For torch.

    Raises:
        Error: If ``batch_sampler`` comes with what it replaces.
        AssertionError: If processes cannot share the data so.
    """

    def __init__(  # noqa: PLR0917  # the SDK's order
        self,
        options: Options,
        dataset: Any,
        batch_size: Optional[int] = 1,
        shuffle: Optional[bool] = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: Optional[bool] = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: Optional[Dict[str, Any]] = None,
        rebatched_worker_size: Optional[int] = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        self._accessor: Optional[AsynchronousDataAccessor] = None
        self._has_batch_sampler = batch_sampler is not None
        self._drops_last = drop_last
        require(isinstance(options, Options), f"expected poptorch.Options, got {type(options)}")
        if self._has_batch_sampler:
            _check_batch_sampler(options, batch_size, shuffle, auto_distributed_partitioning)
            batch_size = getattr(batch_sampler, "batch_size", batch_size)
        options._freeze()
        self._options = options
        self._set_sizes(batch_size)
        self._part: Optional[SubDataset] = None
        if isinstance(dataset, IterableDataset):
            _check_iterable(options, num_workers, kwargs, is_parted=auto_distributed_partitioning)
        else:
            num_workers = min(num_workers, max(1, usable_cores()))
            self._warn_of_short_batch(dataset, batch_sampler)
            if options.Distributed.numProcesses > 1 and auto_distributed_partitioning:
                dataset = self._part_of(dataset, shuffle=bool(shuffle))
                shuffle = False
        rows, is_rebatched = self._rows_of_workers(mode, rebatched_worker_size)
        super().__init__(
            dataset,
            batch_size=1 if self._has_batch_sampler else rows,
            shuffle=bool(shuffle) and not self._has_batch_sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            drop_last=drop_last and not (is_rebatched or self._has_batch_sampler),
            persistent_workers=num_workers > 0
            if persistent_workers is None
            else persistent_workers,
            **kwargs,
        )
        if mode != DataLoaderMode.Sync:
            self._read_ahead(async_options or {}, is_rebatched=is_rebatched)

    @property
    def combinedBatchSize(self) -> Optional[int]:
        """Rows of one call of this process."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options it was made with."""
        return self._options

    def terminate(self) -> None:
        """Stop reading ahead, and workers that read for it."""
        if self._accessor is not None:
            self._accessor.terminate()
            self._iterator = None

    def __del__(self) -> None:
        if "_accessor" in self.__dict__:
            self.terminate()

    def __len__(self) -> int:
        if self._accessor is not None and self._accessor.rebatched_size:
            dataset: Any = self.dataset  # torch's type has no length; one without raises here
            whole, rest = divmod(len(dataset), self._accessor.rebatched_size)
            return whole + bool(rest and not self._drops_last)
        if self._has_batch_sampler and self._num_batches_to_combine:
            whole, rest = divmod(super().__len__(), self._num_batches_to_combine)
            return whole + bool(rest and not self._drops_last)
        return super().__len__()

    def __iter__(self) -> Any:
        return self.fresh_iterator() if self._accessor is None else iter(self._accessor)

    def fresh_iterator(self) -> Iterator[Any]:
        """Iterate without the accessor, which uses this itself."""
        if self._part is not None:
            self._part.start_epoch()
        batches = super().__iter__()
        if self._has_batch_sampler and self._num_batches_to_combine != 1:
            return _combined(batches, int(self._num_batches_to_combine or 1), self._drops_last)
        return batches

    def _set_sizes(self, batch_size: Optional[int]) -> None:
        options = self._options
        self._num_batches_to_combine: Optional[int] = None
        self._combined_batch_size: Optional[int] = None
        if batch_size is not None:
            inputs = options.replication_factor // options.input_group_size
            self._num_batches_to_combine = (
                options.device_iterations * inputs * options.Training.gradient_accumulation
            )
            self._combined_batch_size = batch_size * self._num_batches_to_combine

    def _part_of(self, dataset: Any, *, shuffle: bool) -> SubDataset:
        require(
            self._combined_batch_size is not None,
            "batch_size=None not allowed when using auto_distributed_partitioning.",
        )
        step = int(self._combined_batch_size or 1)
        self._part = SubDataset(
            dataset, self._options, step, drop_last=self._drops_last, shuffle=shuffle
        )
        return self._part

    def _rows_of_workers(self, mode: DataLoaderMode, rebatched_worker_size: Optional[int]) -> Any:
        """Rows that torch's loader gives at once, and whether they are joined behind it."""
        rows = self._combined_batch_size
        has_tail = mode == DataLoaderMode.Async and not self._drops_last and (rows or 1) > 1
        is_rebatched = mode == DataLoaderMode.AsyncRebatched or has_tail
        if is_rebatched and rebatched_worker_size is not None:
            require(
                rebatched_worker_size <= (rows or 1),
                f"The rebatched_worker_size ({rebatched_worker_size}) must be <= to the combined "
                f"batch size ({rows})",
            )
            return rebatched_worker_size, is_rebatched
        return rows, is_rebatched

    def _read_ahead(self, async_options: Dict[str, Any], *, is_rebatched: bool) -> None:
        require(
            "rebatched_size" not in async_options,
            "You cannot use DataLoaderMode.AsyncRebatched and manually specify the rebatched_size "
            "in async_options",
        )
        self.rebatched_drop_last = self._drops_last
        self._owns_accessor = True
        size = self._combined_batch_size if is_rebatched else None
        self._accessor = AsynchronousDataAccessor(self, **async_options, rebatched_size=size)

    def _warn_of_short_batch(self, dataset: Any, batch_sampler: Any) -> None:
        if self._drops_last or self._combined_batch_size is None:
            return
        step = self._combined_batch_size * self._options.Distributed.numProcesses
        num_samples = len(dataset)
        if self._has_batch_sampler:
            step, num_samples = int(self._num_batches_to_combine or 1), _length(batch_sampler)
        if num_samples % step:
            logger.warning(
                "%d elements are not divisible by the %d of one step and drop_last=False. The last "
                "tensor will have a batch size of %d, which a compiled model refuses. To avoid "
                "having to handle this special case switch to drop_last=True",
                num_samples,
                step,
                num_samples % step,
            )


def _check_batch_sampler(
    options: Options,
    batch_size: Optional[int],
    shuffle: Optional[bool],
    is_parted: bool,
) -> None:
    if batch_size != 1 or shuffle:
        raise Error("`batch_sampler` option is mutually exclusive with batch_size, shuffle.")
    if options.Distributed.numProcesses > 1 and is_parted:
        raise Error(
            "`batch_sampler` option is mutually exclusive with auto_distributed_partitioning=True."
        )


def _check_iterable(
    options: Options, num_workers: int, kwargs: Dict[str, Any], *, is_parted: bool
) -> None:
    require(
        not is_parted or options.Distributed.numProcesses == 1,
        "auto_distributed_partitioning not supported for IterableDataset",
    )
    if num_workers > 1 and "worker_init_fn" not in kwargs:
        logger.warning(
            "IterableDataset used with num_workers=%d but no worker_init_fn specified: each "
            "element of the dataset is returned %d times",
            num_workers,
            num_workers,
        )


def _length(batch_sampler: Any) -> int:
    try:
        return len(batch_sampler)
    except (TypeError, NotImplementedError):
        return 0


def _combined(batches: Iterator[Any], num_batches: int, drop_last: bool) -> Iterator[Any]:
    """Join micro-batches along their first axis to the batch of a call."""
    waiting: List[List[torch.Tensor]] = []
    form = None
    for form in batches:
        waiting.append(flatten(form))
        if len(waiting) == num_batches:
            yield rebuild(form, [torch.cat(tensors) for tensors in zip(*waiting)])
            waiting = []
    if waiting and not drop_last:
        yield rebuild(form, [torch.cat(tensors) for tensors in zip(*waiting)])

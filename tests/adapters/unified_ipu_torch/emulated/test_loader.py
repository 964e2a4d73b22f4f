"""The emulated ``poptorch.DataLoader``: sizes, tails, processes, reading ahead."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

from unified_ipu_torch.emulated import poptorch

SYNC, ASYNC = poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async
REBATCHED = poptorch.DataLoaderMode.AsyncRebatched


class Numbers(Dataset):
    def __init__(self, length=100):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.full((2,), float(index)), index


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return (torch.tensor([float(index)]) for index in range(self.length))


class Broken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 3:
            raise ValueError("the last one is broken")
        return torch.zeros(1)


def options(iterations=1, accumulation=1, replicas=1, process=0, processes=1):
    found = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    found.Training.gradientAccumulation(accumulation)
    found.Distributed.configureProcessId(process, processes)
    return found


@pytest.fixture
def load():
    """Makes loaders, and ends their threads."""
    made = []

    def make(*args, **kwargs):
        made.append(poptorch.DataLoader(*args, **kwargs))
        return made[-1]

    yield make
    for loader in made:
        loader.terminate()


def shapes(loader):
    return [(len(numbers), int(numbers[0]), int(numbers[-1])) for _, numbers in loader]


@pytest.mark.parametrize("mode", [SYNC, ASYNC, REBATCHED])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_batch_holds_the_samples_of_a_call(load, mode, drop_last):
    loader = load(options(2, 4, 3), Numbers(), batch_size=2, mode=mode, drop_last=drop_last)
    whole = [(48, 0, 47), (48, 48, 95)]
    assert loader.combinedBatchSize == 48
    for _ in range(2):
        assert shapes(loader) == (whole if drop_last else [*whole, (4, 96, 99)])
    assert len(loader) == (2 if drop_last else 3)


def test_samples_are_dropped_by_default_unlike_torch_and_a_tail_is_warned_of(load, caplog):
    assert len(load(options(), Numbers(10), batch_size=4)) == 2
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        load(options(), Numbers(10), batch_size=4, drop_last=False)
    assert "The last tensor will have a batch size of 2" in caplog.text


def test_replicas_that_share_an_input_ask_for_fewer_samples(load):
    grouped = options(2, 1, 4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert load(grouped, Numbers(), batch_size=3).combinedBatchSize == 12


def test_options_are_frozen_and_may_serve_two_loaders(load):
    shared = options()
    first, second = load(shared, Numbers()), load(shared, Numbers())
    assert first.options is second.options is shared
    with pytest.raises(AttributeError, match="frozen"):
        shared.deviceIterations(2)


# 100 samples, batches of 7, 2 iterations, 2 processes: 14 samples a call.
@pytest.mark.parametrize(
    ("drop_last", "process", "starts", "length"),
    [
        (True, 0, [0, 14, 28], 42),
        (True, 1, [42, 56, 70], 42),
        (False, 0, [0, 14, 28, 42], 50),
        (False, 1, [50, 64, 78, 92], 50),
    ],
)
def test_each_process_reads_a_contiguous_part(load, drop_last, process, starts, length):
    mine = options(2, process=process, processes=2)
    loader = load(mine, Numbers(), batch_size=7, drop_last=drop_last)
    assert [start for _, start, _ in shapes(loader)] == starts
    assert len(loader.dataset) == length


def epochs_of(load, process, epochs, mode, seed=3):
    mine = options(process=process, processes=3).randomSeed(seed)
    loader = load(mine, Numbers(), batch_size=4, shuffle=True, mode=mode)
    return [[int(n) for _, numbers in loader for n in numbers] for _ in range(epochs)]


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_processes_share_a_permutation_anew_each_epoch(load, mode):
    parts = [epochs_of(load, process, 2, mode) for process in range(3)]
    for epoch in range(2):
        seen = [number for part in parts for number in part[epoch]]
        assert len(seen) == len(set(seen)) == 96
    assert parts[0][0] != parts[0][1]
    # The samples left out of the first epoch are in the second.
    assert {number for part in parts for epoch in part for number in epoch} == set(range(100))


def test_shuffling_between_processes_needs_a_seed(load):
    with pytest.raises(AssertionError, match="randomSeed"):
        load(options(processes=2), Numbers(), shuffle=True)


def test_too_few_samples_for_every_process_are_refused_with_numbers(load):
    with pytest.raises(
        poptorch.Error, match="10 samples are less than one call of 8 for each of 2"
    ):
        load(options(processes=2), Numbers(10), batch_size=8)


def test_streams_are_not_parted(load):
    with pytest.raises(AssertionError, match="not supported for IterableDataset"):
        load(options(processes=2), Stream(4))
    loader = load(options(processes=2), Stream(4), auto_distributed_partitioning=False)
    assert [int(batch) for batch in loader] == [0, 1, 2, 3]


def test_a_stream_without_a_length_has_none_here(load):
    loader = load(options(), Stream(3), batch_size=None, drop_last=False, mode=ASYNC)
    assert [batch.shape for batch in loader] == [torch.Size([1])] * 3
    assert loader.combinedBatchSize is None
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(loader)


def test_a_batch_sampler_gives_micro_batches(load):
    sampler = BatchSampler(SequentialSampler(range(100)), 2, drop_last=False)
    loader = load(options(2, 4, 3), Numbers(), batch_sampler=sampler)
    assert shapes(loader) == [(48, 0, 47), (48, 48, 95)]
    kept = load(options(2, 4, 3), Numbers(), batch_sampler=sampler, drop_last=False)
    assert shapes(kept)[-1] == (4, 96, 99)
    with pytest.raises(poptorch.Error, match="mutually exclusive with batch_size, shuffle"):
        load(options(), Numbers(), batch_sampler=sampler, batch_size=2)
    with pytest.raises(poptorch.Error, match="auto_distributed_partitioning=True"):
        load(options(processes=2), Numbers(), batch_sampler=sampler)


def test_a_loop_that_was_left_starts_again_at_the_first_sample(load):
    loader = load(options(), Numbers(10), mode=ASYNC)
    for _, numbers in loader:
        if int(numbers) == 4:
            break
    assert [int(numbers) for _, numbers in loader] == list(range(10))


def test_a_batch_read_ahead_is_overwritten_once_it_was_let_go(load):
    loader = load(options(), Numbers(8), mode=ASYNC, async_options={"buffer_size": 2})
    kept = [numbers for _, numbers in loader]
    assert [int(numbers) for numbers in kept] != list(range(8))
    assert [int(numbers.clone()) for _, numbers in loader] == list(range(8))


def test_preloading_fills_the_buffers_before_the_first_loop(load):
    ahead = {"buffer_size": 5, "early_preload": True}
    eager = load(options(), Numbers(10), mode=ASYNC, async_options=ahead)
    lazy = load(options(), Numbers(10), mode=ASYNC, async_options={"buffer_size": 5})
    worker = eager._accessor._worker
    with worker._data_buffers._room:
        worker._data_buffers._room.wait_for(lambda: worker._data_buffers._count == 5, timeout=20)
    assert sum(worker._data_buffers.indices_mem) == 5
    assert sum(lazy._accessor._worker._data_buffers.indices_mem) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_small_pieces_are_joined_to_whole_batches(load, num_workers):
    loader = load(
        options(3),
        Numbers(20),
        batch_size=2,
        mode=REBATCHED,
        rebatched_worker_size=5,
        num_workers=num_workers,
        drop_last=False,
    )
    assert shapes(loader) == [(6, 0, 5), (6, 6, 11), (6, 12, 17), (2, 18, 19)]
    with pytest.raises(AssertionError, match="must be <="):
        load(options(), Numbers(), batch_size=2, mode=REBATCHED, rebatched_worker_size=5)


def test_an_error_in_a_dataset_reaches_the_loop(load):
    loader = load(options(), Broken(), mode=ASYNC)
    with pytest.raises(AssertionError, match="An error occurred in the data fetcher") as caught:
        list(loader)
    assert "the last one is broken" in str(caught.value.__cause__)


@pytest.fixture
def access():
    made = []

    def make(*args, **kwargs):
        made.append(poptorch.AsynchronousDataAccessor(*args, **kwargs))
        return made[-1]

    yield make
    for accessor in made:
        accessor.terminate()


def test_an_accessor_reads_any_iterable(access):
    assert [int(item.clone()) for item in access(Stream(5))] == [0, 1, 2, 3, 4]
    tables = [{"a": torch.tensor(n), "b": torch.tensor(-n)} for n in range(3)]
    assert [{k: int(v) for k, v in item.items()} for item in access(tables)] == [
        {"a": n, "b": -n} for n in range(3)
    ]


@pytest.mark.parametrize("data", [[], [(torch.zeros(1), 3)], [[torch.zeros(1), [1]]]])
def test_what_cannot_be_read_ahead_is_refused_at_once(access, data, caplog):
    with pytest.raises(poptorch.Error, match="worker thread failed to start"):
        access(data)


def test_one_accessor_is_enough(access, load):
    with pytest.raises(poptorch.Error, match="already uses an AsynchronousDataAccessor"):
        access(load(options(), Numbers(4), mode=ASYNC))
    with pytest.raises(AssertionError, match="'rebatched_size' is specified"):
        access(load(options(), Numbers(4), batch_size=2, drop_last=False))
    with pytest.raises(AssertionError, match="None or greater than 1"):
        access(Stream(3), rebatched_size=1)


def test_a_terminated_accessor_says_so(access):
    accessor = access(Stream(3))
    accessor.terminate()
    with pytest.raises(AssertionError, match="was terminated"):
        iter(accessor)

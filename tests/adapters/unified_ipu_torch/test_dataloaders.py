"""Live torch ``DataLoader`` objects behind the core's loaders."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Dict, List

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from unified_ipu.comms import connect, local_group
from unified_ipu.data import Loader, as_source
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.plan import BatchPlan

SIXTEEN = TensorDataset(10 * torch.arange(16), torch.arange(16.0))


class Numbers(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(5))

    def __len__(self) -> int:
        return 5


class Backwards:
    """A sampler of the user's own that is told the epoch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.epoch = -1

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter([(self.epoch - k) % self.size for k in range(self.size)])


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(source: Any, batch: BatchPlan, communicator: Any = None, **changes: Any) -> Loader:
    communicator = communicator or connect(rank=0, size=1, job="")
    options: Dict[str, Any] = {"seed": 0, "shuffle": True, "train": True, **changes}
    return Loader(
        source, batch=batch, replica=communicator.rank, communicator=communicator, **options
    )


def read(loader: Loader) -> List[List[int]]:
    """First leaf of each micro-batch, divided by ten: the indices of the dataset."""
    batches = loader
    if loader.train:
        batches = (m for c in loader for u in c.updates for m in u.micro_batches)  # type: ignore[assignment]
    return [[value // 10 for value in micro.tree[0].tolist()] for micro in batches]


def on_ranks(size: int, function: Any) -> List[Any]:
    group = local_group(size)
    try:
        with ThreadPoolExecutor(size) as pool:
            return [job.result(timeout=60) for job in [pool.submit(function, c) for c in group]]
    finally:
        for communicator in group:
            communicator.close()


@pytest.mark.case("O-S8")
def test_a_combined_batch_is_split_once_over_the_replicas() -> None:
    def rank(communicator: Any) -> Any:
        loader = make(DataLoader(SIXTEEN, batch_size=2), BatchPlan(4, 2, 2), communicator)
        return read(loader), str(loader.certificate())

    text = "16 of 16 samples, each once"
    assert on_ranks(2, rank) == [
        ([[0, 1], [4, 5], [8, 9], [12, 13]], text),
        ([[2, 3], [6, 7], [10, 11], [14, 15]], text),
    ]


@pytest.mark.case("O-S8")
def test_a_distributed_sampler_is_refused_since_samples_are_dealt_here() -> None:
    sampler: Any = DistributedSampler(SIXTEEN, num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match=r"DistributedSampler.*split twice; leave the"):
        as_source(DataLoader(SIXTEEN, batch_size=2, sampler=sampler))


@pytest.mark.case("O-S8")
def test_pairs_of_a_batch_sampler_are_joined_or_refused_with_both_sizes() -> None:
    def pairs() -> Any:
        return DataLoader(
            SIXTEEN, batch_sampler=BatchSampler(SequentialSampler(SIXTEEN), 2, drop_last=False)
        )

    def rank(communicator: Any) -> Any:
        return read(make(pairs(), BatchPlan(4, 2, 2), communicator))

    assert on_ranks(2, rank) == [
        [[0, 1], [4, 5], [8, 9], [12, 13]],
        [[2, 3], [6, 7], [10, 11], [14, 15]],
    ]
    with pytest.raises(ConfigError, match=r"batches of \[2\] samples .* micro-batch has 4"):
        make(pairs(), BatchPlan(8, 4, 2))
    with pytest.raises(ConfigError, match=r"micro-batch has 2 and an update 3"):
        make(pairs(), BatchPlan(3, 2))


def test_a_sequential_order_is_not_shuffled() -> None:
    loader = make(DataLoader(SIXTEEN, batch_size=8), BatchPlan(16, 8))
    assert read(loader) == read(loader) == [list(range(8)), list(range(8, 16))]


def test_l3_a_seeded_order_is_that_of_torch_in_every_epoch_and_after_a_restart() -> None:
    def loader_of() -> Any:
        return DataLoader(SIXTEEN, batch_size=4, shuffle=True, generator=seeded())

    generator = seeded()
    sampler = RandomSampler(SIXTEEN, generator=generator)
    epochs = [list(sampler) for _ in range(3)]
    loader = make(loader_of(), BatchPlan(8, 4))
    assert [[*chain(*read(loader))] for _ in range(3)] == epochs
    assert epochs[0] != epochs[1]
    again = make(loader_of(), BatchPlan(8, 4))
    again.seek(2, 8)
    assert [*chain(*read(again))] == epochs[2][8:]
    again.seek(0, 8)
    assert [*chain(*read(again))] == epochs[0][8:]


def test_l4_all_ranks_take_the_order_of_the_first() -> None:
    def rank(communicator: Any) -> Any:
        generator = seeded(communicator.rank)
        given = DataLoader(SIXTEEN, batch_size=2, shuffle=True, generator=generator)
        loader = make(given, BatchPlan(4, 2, 2), communicator)
        return [read(loader) for _ in range(2)]

    first, second = on_ranks(2, rank)
    sampler = RandomSampler(SIXTEEN, generator=seeded(0))
    for epoch in (0, 1):
        dealt = [k for pair in zip(first[epoch], second[epoch]) for ids in pair for k in ids]
        assert dealt == list(sampler)


def test_a_sampler_may_repeat_samples_and_leave_some_out() -> None:
    weights = [1.0] * 4 + [0.0] * 12
    sampler = WeightedRandomSampler(weights, 24, generator=seeded())
    expected = list(WeightedRandomSampler(weights, 24, generator=seeded()))
    loader = make(DataLoader(SIXTEEN, batch_size=8, sampler=sampler), BatchPlan(8, 8))
    assert loader.size == 24
    assert [*chain(*read(loader))] == expected
    assert str(loader.certificate()) == "24 of 24 samples, each once"


def test_a_sampler_of_the_user_is_told_the_epoch() -> None:
    loader = make(DataLoader(SIXTEEN, batch_size=8, sampler=Backwards(16)), BatchPlan(8, 8))
    assert [read(loader)[0][:3] for _ in range(2)] == [[0, 15, 14], [1, 0, 15]]


def test_evaluation_keeps_the_order_too() -> None:
    loader = make(DataLoader(SIXTEEN, batch_size=5), BatchPlan(4, 4), train=False)
    assert read(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_its_collate_function_is_used_unless_another_one_is_given() -> None:
    def doubled(samples: Any) -> Any:
        return {"x": torch.stack([2 * x for x, _ in samples])}

    given: Any = DataLoader(SIXTEEN, batch_size=2, collate_fn=doubled)
    loader = make(given, BatchPlan(2, 2))
    call = next(iter(loader))
    assert [m.tree["x"].tolist() for m in call.updates[0].micro_batches] == [[0, 20]]
    loader = make(given, BatchPlan(2, 2), collate=lambda samples: torch.zeros(len(samples)))
    call = next(iter(loader))
    assert [m.tree.tolist() for m in call.updates[0].micro_batches] == [[0, 0]]


def test_another_batch_size_and_worker_processes_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given: Any = DataLoader(SIXTEEN, batch_size=8, num_workers=2)
    with caplog.at_level(logging.WARNING, "unified_ipu.data"):
        make(given, BatchPlan(4, 4))
    assert "batch_size=8 of the DataLoader is not used: a micro-batch has 4 rows" in caplog.text
    assert "num_workers=2 of the DataLoader is not used" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": True}, "RandomSampler without a generator .*data.shuffle"),
        ({"sampler": SubsetRandomSampler([1, 2])}, "SubsetRandomSampler without a generator"),
        (
            {"batch_sampler": BatchSampler(RandomSampler(SIXTEEN), 2, drop_last=False)},
            "RandomSampler without a generator",
        ),
        ({"batch_size": None}, "batch_size=None"),
        ({"sampler": iter([1])}, "has no length"),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused(options: Dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_source(DataLoader(SIXTEEN, **options))


def test_rows_are_dropped_by_the_plan_only() -> None:
    given: Any = DataLoader(SIXTEEN, batch_size=5, drop_last=True)
    with pytest.raises(ConfigError, match=r'batch.remainder = "drop"'):
        make(given, BatchPlan(5, 5))
    with pytest.raises(ConfigError, match="nothing is dropped here"):
        make(given, BatchPlan(5, 5, 1, 1, "drop"), train=False)
    loader = make(given, BatchPlan(5, 5, 1, 1, "drop"))
    assert len(read(loader)) == 3
    assert str(loader.certificate()) == "15 of 16 samples, each once, 1 dropped"


def test_an_iterable_dataset_is_sent_to_stream() -> None:
    for given in (Numbers(), DataLoader(Numbers(), batch_size=2)):
        with pytest.raises(ConfigError, match=r'ui\.data\.stream\("module:function"\)'):
            as_source(given)


@pytest.mark.timeout(60)
def test_l4_a_sampler_that_fails_fails_on_all_ranks() -> None:
    class Bad(Backwards):
        def __iter__(self) -> Any:
            return iter(["a"] * self.size if self.epoch == 0 else [1])

    def rank(communicator: Any) -> Any:
        given: Any = DataLoader(SIXTEEN, batch_size=2, sampler=Bad(8))
        loader = make(given, BatchPlan(4, 2, 2), communicator)
        messages = []
        for epoch in (0, 1):
            loader.seek(epoch, 0)
            with pytest.raises(DataError, match="sampler Bad failed: DataError: it g") as caught:
                read(loader)
            messages.append(str(caught.value))
        return messages

    results = on_ranks(2, rank)
    assert results[0] == results[1]
    assert "gives indices of type" in results[0][0]
    assert "gave 1 indices, its length is 8" in results[0][1]

"""Tensors on a device over c10d: the same class, with gloo in the place of NCCL, CPU in CUDA's."""

from __future__ import annotations

import threading
from typing import Any, List

import pytest
import torch
import torch.distributed

from unified_ipu.errors import CollectiveError
from unified_ipu_torch.c10d import local_group
from unified_ipu_torch.c10d_communicator import C10dCommunicator

dist: Any = torch.distributed  # some names are public but for the type checker


def build_stand_in(store, rank, size):
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(dist.PrefixStore("device", store), rank, size, options)


@pytest.fixture(scope="module")
def ranks():
    """Two ranks whose torch tensors count as tensors on a device."""
    made: List[Any] = list(local_group(2))
    group = [
        C10dCommunicator(
            communicator._wire,
            build_device_group=build_stand_in,
            is_on_device=lambda array: isinstance(array, torch.Tensor),
        )
        for communicator in made
    ]
    yield group
    for communicator in group:
        communicator.close()


@pytest.fixture
def on_ranks(ranks):
    def run(function):
        results: List[Any] = [None, None]

        def call(rank):
            try:
                results[rank] = function(ranks[rank])
            except CollectiveError as error:
                results[rank] = error

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_sums_are_tensors_of_the_same_dtype(on_ranks, dtype):
    results = on_ranks(lambda c: c.all_reduce(torch.full((3, 2), c.rank + 1).to(dtype)))
    for result in results:
        assert result.dtype == dtype
        assert result.tolist() == [[3, 3]] * 3


def test_a_column_is_reduced_in_place_and_its_neighbours_stay(on_ranks):
    def reduce(communicator):
        base = torch.arange(6).reshape(3, 2) * (communicator.rank + 1)
        before = base[:, 0].tolist()
        assert communicator.all_reduce(base[:, 1], out=base[:, 1]).tolist() == [3, 9, 15]
        assert base[:, 0].tolist() == before
        return base[:, 1].tolist()

    assert on_ranks(reduce) == [[3, 9, 15]] * 2


def test_mean_max_and_complex_sums(on_ranks):
    def reduce(communicator):
        mine = torch.tensor([communicator.rank + 1.0, -communicator.rank])
        return (
            communicator.all_reduce(mine, op="mean").tolist(),
            communicator.all_reduce(mine, op="max").tolist(),
            communicator.all_reduce(mine, op="min").tolist(),
            communicator.all_reduce(torch.complex(mine, mine)).tolist(),
        )

    expected = ([1.5, -0.5], [2.0, 0.0], [1.0, -1.0], [3 + 3j, -1 - 1j])
    assert on_ranks(reduce) == [expected] * 2


def test_gather_broadcast_reduce_and_scatter(on_ranks):
    def everything(communicator):
        rank = communicator.rank
        rows = torch.arange(6.0).reshape(3, 2)
        reduced = communicator.reduce(rows, root=1)
        return (
            [part.tolist() for part in communicator.all_gather(rows[: 2 * rank])],
            communicator.broadcast(rows + rank, root=1)[0].tolist(),
            None if reduced is None else reduced[2].tolist(),
            communicator.reduce_scatter(rows).tolist(),
        )

    gathered = [[], [[0.0, 1.0], [2.0, 3.0]]]
    first, second = on_ranks(everything)
    assert first == (gathered, [1.0, 2.0], None, [[0.0, 2.0], [4.0, 6.0]])
    assert second == (gathered, [1.0, 2.0], [8.0, 10.0], [[8.0, 10.0]])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda c: c.all_reduce(torch.arange(3), op="mean"), "the mean of torch.int64"),
        (lambda c: c.all_reduce(torch.zeros(2, dtype=torch.bool)), "a sum of bool"),
        (lambda c: c.all_reduce(torch.zeros(2 + c.rank)), "the ranks disagree about"),
        (lambda c: c.all_reduce(torch.zeros(2), out=torch.zeros(3)), "out is a torch.float32"),
        (lambda c: c.broadcast(torch.zeros(2), root=3), "root 3 is not in 0..1"),
        (lambda c: c.all_gather(torch.tensor(1.0)), "a scalar has no axis 0"),
    ],
)
def test_l4_what_cannot_be_done_is_an_error_on_all_ranks_and_keeps_them_in_step(
    on_ranks, call, reason
):
    assert all(reason in str(error) for error in on_ranks(call))
    assert on_ranks(lambda c: c.all_reduce(torch.ones(1)).item()) == [2.0, 2.0]

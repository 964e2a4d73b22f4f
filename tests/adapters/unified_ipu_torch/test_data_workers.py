"""Torch datasets in data processes: what they draw, and iterable ones as streams."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List

import pytest

from tests.adapters.unified_ipu_torch.torch_datasets import Draws
from unified_ipu.comms import local_group
from unified_ipu.data import Loader, stream
from unified_ipu.plan import BatchPlan, DataSettings

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

LIBRARIES = ("torch", "numpy", "random")


def on_ranks(size: int, function: Any) -> List[Any]:
    group = local_group(size)
    try:
        with ThreadPoolExecutor(size) as pool:
            return [job.result(timeout=100) for job in [pool.submit(function, c) for c in group]]
    finally:
        for communicator in group:
            communicator.close()


def trees_of(communicator: Any, source: Any, **changes: Any) -> List[Any]:
    options: Dict[str, Any] = {"seed": 40, "shuffle": True, "train": True, **changes}
    with Loader(
        source,
        batch=BatchPlan(2 * communicator.size, 1, communicator.size),
        replica=communicator.rank,
        communicator=communicator,
        search_path=[str(Path(__file__).parent)],
        **options,
    ) as loader:
        trees = [m.tree for call in loader for u in call.updates for m in u.micro_batches]
        assert loader.certificate().ok
        return trees


@pytest.mark.case("O-M5")
def test_l3_no_two_samples_of_four_ranks_and_two_workers_draw_the_same_and_a_second_run_does() -> (
    None
):
    def rank(communicator: Any) -> List[Any]:
        return trees_of(communicator, Draws(8), settings=DataSettings(workers=2))

    runs = [on_ranks(4, rank) for _ in range(2)]
    for trees in runs:
        assert len({(k, int(t["pid"][0])) for k, mine in enumerate(trees) for t in mine}) == 8
    drawn = [
        {
            library: [float(tree[library][0]) for mine in trees for tree in mine]
            for library in LIBRARIES
        }
        for trees in runs
    ]
    for library in LIBRARIES:
        assert len(set(drawn[0][library])) == 8
    assert drawn[0] == drawn[1]


@pytest.mark.case("O-S6")
def test_l2_1_an_iterable_dataset_is_dealt_once_over_three_ranks() -> None:
    def rank(communicator: Any) -> List[Any]:
        return [tree.tolist() for tree in trees_of(communicator, stream("torch_datasets:count"))]

    assert on_ranks(3, rank) == [[[[k, k]] for k in range(start, 12, 3)] for start in range(3)]

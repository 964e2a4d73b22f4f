"""The example's training on other worlds and in other micro-batches: L5, with the real pipeline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_mixed"
UPDATES = 50
GLOBAL_BATCH = 96  # 4000 = 41 * 96 + 64: the last update of the first epoch is short


def train_50_updates(world: Any, micro_batch_size: int, dropout: float) -> Dict[str, Any]:
    """One rank of 50 updates with the example's model and pipeline."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import unified_ipu as ui
        from model import Net

        plan = ui.Plan().replace(
            {
                "mesh.data": world.world_size,
                "batch.global_batch_size": GLOBAL_BATCH,
                "batch.micro_batch_size": micro_batch_size,
            }
        )
        argv = [str(EXAMPLE / "train.py")]
        with ui.Session(plan, world=world, argv=argv) as session:
            import torch

            with session.scope():
                model = Net(dropout=dropout)
            program = session.compile(
                model,
                loss=torch.nn.CrossEntropyLoss(),
                optimizer=ui.optim.SGD(lr=0.05, momentum=0.9),
                schedule=lambda update: 1.0 - update / 100,
            )
            return _run(ui, session, program)
    finally:
        sys.path.remove(str(EXAMPLE))


def _run(ui: Any, session: Any, program: Any) -> Dict[str, Any]:
    train = session.loader(ui.data.tensorflow("pipeline:train", size=4000))
    start = program.weights()
    first: Dict[str, Any] = {}
    ids: List[Dict[int, List[int]]] = []
    numbers: List[Any] = []
    while program.update < UPDATES:
        for call in train:
            (update,) = call.updates
            seen: Dict[int, List[int]] = {}
            kept = list(update.micro_batches)
            for micro in kept:
                seen[micro.index] = micro.ids.tolist()
            ids.append(seen)
            record = program.step(type(call)((type(update)(0, kept, update.samples),), call.epoch))
            numbers.append((record.samples, record.weight, record.lr))
            if program.update == 1:
                first = program.weights()
            if program.update == UPDATES:
                break
    return {
        "ids": ids,
        "numbers": numbers,
        "change": {name: first[name] - start[name] for name in start},
        "weights": program.weights(),
    }


def _joined(ranks: List[Dict[str, Any]]) -> List[List[int]]:
    """Ids of each update in the order of its micro-batches, over all ranks."""
    updates = []
    for parts in zip(*(rank["ids"] for rank in ranks)):
        micro_batches = {index: ids for part in parts for index, ids in part.items()}
        updates.append([i for index in sorted(micro_batches) for i in micro_batches[index]])
    return updates


def _relative(left: Any, right: Any) -> float:
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def _check_same(other: List[Dict[str, Any]], reference: List[Dict[str, Any]]) -> None:
    assert _joined(other) == _joined(reference)
    for rank in other:
        assert rank["numbers"] == reference[0]["numbers"]
        for name, change in reference[0]["change"].items():
            assert _relative(rank["change"][name], change) < 5e-5, name
        flat = [
            np.concatenate([w.ravel() for w in r["weights"].values()]) for r in (rank, reference[0])
        ]
        assert _relative(*flat) < 1e-4
        for name, weight in rank["weights"].items():
            assert np.array_equal(weight, other[0]["weights"][name]), name


def _check_ids(ranks: List[Dict[str, Any]]) -> None:
    epoch = [i for update in _joined(ranks)[:42] for i in update]
    assert sorted(epoch) == list(range(4000))
    assert ranks[0]["numbers"][41][:2] == (64, 64.0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_l5_other_worlds_train_the_same_with_dropout_and_augmentation(warm_pool):
    def run(replicas: int) -> Any:
        return warm_pool.run(
            train_50_updates, size=replicas, timeout=120, micro_batch_size=16, dropout=0.25
        )

    alone = run(1)
    _check_ids(alone)
    _check_same(run(4), alone)  # six micro-batches: two replicas have one more


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_l5_other_micro_batches_train_the_same_without_dropout(warm_pool):
    def run(replicas: int, micro_batch_size: int) -> Any:
        return warm_pool.run(
            train_50_updates,
            size=replicas,
            timeout=120,
            micro_batch_size=micro_batch_size,
            dropout=0.0,
        )

    whole = run(1, GLOBAL_BATCH)
    _check_same(run(3, 7), whole)  # 14 micro-batches, the last of 5 rows

"""The example broken off and resumed on other worlds: the same training, masks and pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_mixed"
UPDATES = 48  # 4000 = 41 * 96 + 64: in the second epoch


def fit_part(world: Any, folder: Optional[str], until: int) -> Dict[str, Any]:
    """One rank that goes on until so many updates, with dropout and turned pictures."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import torch

        import unified_ipu as ui
        from model import Net

        plan = ui.Plan().replace(
            {
                "mesh.data": world.world_size,
                "batch.global_batch_size": 96,
                "batch.micro_batch_size": 24,
            }
        )
        with ui.Session(plan, world=world, argv=[str(EXAMPLE / "train.py")]) as session:
            with session.scope():
                model = Net(dropout=0.25)
            program = session.compile(
                model,
                loss=torch.nn.CrossEntropyLoss(),
                optimizer=ui.optim.SGD(lr=0.05, momentum=0.9),
                schedule=lambda update: 1.0 - update / 100,
            )
            summary = program.fit(
                session.loader(ui.data.tensorflow("pipeline:train", size=4000)),
                epochs=2,
                max_updates=until,
                checkpoint=folder,
                resume="auto" if folder else None,
            )
            return {
                "weights": program.weights(),
                "samples": [epoch.samples for epoch in summary.epochs],
                "losses": [epoch.loss for epoch in summary.epochs],
                "certificates": [str(epoch.certificate) for epoch in summary.epochs],
            }
    finally:
        sys.path.remove(str(EXAMPLE))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_l3_6_the_example_resumed_on_random_worlds_is_the_same_training(warm_pool, tmp_path):
    (whole,) = warm_pool.run(fit_part, 1, folder=None, until=UPDATES)
    sizes = np.random.default_rng(5).integers(1, 5, size=2).tolist()
    assert len(set(sizes)) > 1
    parts: Dict[str, Any] = {}
    for size, until in zip(sizes, (29, UPDATES)):
        parts = warm_pool.run(fit_part, size, folder=str(tmp_path / "run"), until=until)[0]
    assert parts["samples"] == whole["samples"] == [4000, 6 * 96]
    assert parts["certificates"] == whole["certificates"]
    assert parts["certificates"][0] == "4000 of 4000 samples, each once"
    assert parts["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    difference = np.concatenate(
        [(parts["weights"][name] - value).ravel() for name, value in whole["weights"].items()]
    )
    total = np.concatenate([value.ravel() for value in whole["weights"].values()])
    assert np.linalg.norm(difference) < 1e-4 * np.linalg.norm(total)

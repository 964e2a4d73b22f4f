"""Trains the network of examples/mnist_mixed on host and emulated device, in a process of its own.

Run as a program, it writes one JSON object: distances between the two, and where the weights of
a short run on the host are.
"""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch

import unified_ipu as ui

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_mixed"
NUM_UPDATES = 63  # ceil(4000 / 64); the last has 32 rows
SETTINGS = {
    "batch.global_batch_size": 64,
    "batch.micro_batch_size": 8,
    "batch.updates_per_call": 5,
    "batch.remainder": "pad",
    "data.isolate": "never",
}

Weights = Dict[str, Any]


def trained(
    target: str, *, updates: int, start: Optional[Weights] = None, position: int = 0
) -> Any:
    """Weights after some updates from a position of epoch 0, and the records of the calls."""
    from model import Net

    replicas = 2 if target == "ipu-emulated" else 1
    plan = ui.Plan().replace({**SETTINGS, "target": target, "mesh.data": replicas})
    plan = plan.replace({"ipu.replicas_per_process": replicas})
    with ui.Session(plan, argv=[str(EXAMPLE / "train.py")]) as session:
        with session.scope():
            model = Net(dropout=0.0)
        loader = session.loader(ui.data.tensorflow("pipeline:train", size=4000))
        program = session.compile(
            model,
            loss=torch.nn.CrossEntropyLoss(),
            optimizer=ui.optim.SGD(lr=0.1, momentum=0.9),
            schedule=lambda update: 1.0 - update / NUM_UPDATES,
        )
        if start is not None:
            program.load_weights(start)
        loader.seek(0, position)
        before = program.weights()
        records: List[Tuple[int, float, int, float]] = []
        for call in loader:
            left = updates - sum(each[2] for each in records)
            record = program.step(replace(call, updates=call.updates[:left]))
            records.append((record.samples, record.weight, record.updates, record.lr))
            if sum(each[2] for each in records) >= updates:
                break
        return before, program.weights(), records


def norm(one: Weights, other: Weights) -> float:
    """Relative norm of the difference of all weights."""
    square = sum(float(((one[n].astype(float) - other[n]) ** 2).sum()) for n in one)
    return float(np.sqrt(square / sum(float((other[n].astype(float) ** 2).sum()) for n in one)))


def worst_change(before: Weights, one: Weights, other: Weights) -> float:
    """Largest relative norm of the difference of two changes of a tensor."""

    def of(name: str) -> float:
        change = other[name].astype(float) - before[name]
        apart = one[name].astype(float) - other[name]
        return float(np.linalg.norm(apart) / np.linalg.norm(change))

    return max(of(name) for name in before)


def main(folder: Path) -> None:
    """Compare and write."""
    torch.set_num_threads(1)  # more than free cores make small convolutions slow
    sys.path.insert(0, str(EXAMPLE))
    import digits

    digits.load_digits = functools.lru_cache(maxsize=1)(digits.load_digits)
    found: Dict[str, Any] = {}
    _, host, host_records = trained("cpu", updates=50)
    _, device, device_records = trained("ipu-emulated", updates=50)
    found["fifty"] = norm(device, host)
    found["equal"] = host_records == device_records
    before, one, records = trained("ipu-emulated", updates=3, start=host, position=60 * 64)
    _, other, other_records = trained("cpu", updates=3, start=host, position=60 * 64)
    found["last_call"] = worst_change(before, one, other)
    found["last_records"] = [records, other_records]
    before, one, records = trained("ipu-emulated", updates=1, start=host, position=62 * 64)
    _, other, other_records = trained("cpu", updates=1, start=host, position=62 * 64)
    found["last_update"] = worst_change(before, one, other)
    found["last_update_records"] = [records, other_records]
    _, seven, _ = trained("cpu", updates=7)
    np.savez(folder / "seven.npz", **seven)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

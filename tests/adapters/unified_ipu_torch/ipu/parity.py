"""The same training on the host and on the emulated device, and how far apart they end."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import torch

import unified_ipu as ui

SHAPE = {
    "batch.global_batch_size": 16,
    "batch.micro_batch_size": 4,
    "batch.updates_per_call": 3,
    "batch.remainder": "pad",
    "mesh.data": 2,
    "ipu.replicas_per_process": 2,
}
"""A = 2, R = 2, D = 3."""

ON_HOST = {"mesh.data": 1, "target": "cpu"}

Outcome = Dict[str, Any]


def plan_for(target: str, **settings: Any) -> ui.Plan:
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    plan = ui.Plan().replace({**SHAPE, "target": target, **changes})
    return plan.replace(ON_HOST) if target == "cpu" else plan


def train(
    target: str,
    batch: Any,
    *,
    model: Callable[[], torch.nn.Module],
    optimizer: Any = None,
    epochs: int = 2,
    test: Any = None,
    metrics: Any = None,
    settings: Optional[Dict[str, Any]] = None,
    **compiled: Any,
) -> Outcome:
    """Train ``model()`` from the same weights, call by call."""
    with ui.Session(plan_for(target, **(settings or {})), argv=[]) as session:
        torch.manual_seed(3)
        net = model()
        make = optimizer or ui.optim.SGD(lr=0.1, momentum=0.9)
        if callable(make):
            made = make(net)
            schedule = compiled.pop("native_schedule", None)
            if schedule is not None:
                compiled["schedule"] = schedule(made)
            make = made
        program = session.compile(net, optimizer=make, **compiled)
        train_loader = session.loader(batch)
        records = [program.step(call) for _ in range(epochs) for call in train_loader]
        outcome = {
            "exact": [(r.samples, r.weight, r.lr, r.updates, r.skipped) for r in records],
            "losses": [r.loss for r in records],
            "metrics": [r.metrics for r in records],
            "weights": program.weights(),
            "slots": program.executor.read(
                [spec.name for spec in program.executor.tensors() if spec.role == "slot"]
            ),
            "certificate": train_loader.certificate(),
        }
        if test is not None:
            loader = session.loader(test, train=False)
            outcome["evaluation"] = program.evaluate(loader, metrics)
            if "objective" not in compiled:
                outcome["prediction"] = program.predict(loader)
        program.hand_back()
        outcome["own"] = {name: p.detach().numpy().copy() for name, p in net.state_dict().items()}
        return outcome


def change(one: Dict[str, Any], other: Dict[str, Any]) -> float:
    """Relative norm of the difference of all tensors."""
    assert sorted(one) == sorted(other)
    square = sum(float(((one[n].astype(float) - other[n]) ** 2).sum()) for n in one)
    size = sum(float((other[n].astype(float) ** 2).sum()) for n in one)
    return float(np.sqrt(square / size)) if size else float(np.sqrt(square))


def check(batch: Any, *, within: float = 2e-6, **arguments: Any) -> Tuple[Outcome, Outcome]:
    """Run both, and hold what is exact and what is to rounding."""
    host = train("cpu", batch, **arguments)
    device = train("ipu-emulated", batch, **arguments)
    assert device["exact"] == host["exact"]
    np.testing.assert_allclose(device["losses"], host["losses"], rtol=1e-5, atol=1e-6)
    assert change(device["weights"], host["weights"]) < within
    assert change(device["own"], host["own"]) < within
    assert change(device["slots"], host["slots"]) < within
    assert device["certificate"].ok
    return host, device


def classes(size: int, features: int = 5, count: int = 3) -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size, features)).astype(np.float32)
    return x, rng.integers(0, count, size)


def values(size: int, features: int = 5, count: int = 2) -> Any:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((size, features)).astype(np.float32)
    return x, rng.standard_normal((size, count)).astype(np.float32)


def mlp(outputs: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, outputs))

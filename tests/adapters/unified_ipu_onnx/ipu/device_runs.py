"""Programs that run on the emulated device and on the host, to compare what comes of them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

import numpy as np
from onnx import helper

import unified_ipu as ui
from tests.adapters.unified_ipu_onnx import graphs

DEVICE = {"target": "ipu-emulated", "batch.remainder": "pad"}
HOST = {"target": "cpu", "batch.remainder": "pad"}


def plan(base: Mapping[str, Any], **settings: Any) -> ui.Plan:
    """``batch__global_batch_size=8`` is ``batch.global_batch_size``."""
    changes = {name.replace("__", "."): value for name, value in settings.items()}
    on_host = base is HOST
    kept = {n: v for n, v in changes.items() if not (on_host and n.startswith("ipu."))}
    return ui.Plan().replace({**base, **kept})


def mlp(opset: int = 11, classes: int = 3, seed: int = 0) -> Any:
    """``y = tanh(x w1 + b1) w2 + b2`` of 4 features."""
    rng = np.random.default_rng(seed)
    held = {
        "w1": 0.5 * rng.normal(size=(4, 6)),
        "b1": 0.1 * rng.normal(size=6),
        "w2": 0.5 * rng.normal(size=(6, classes)),
        "b2": 0.1 * rng.normal(size=classes),
    }
    return graphs.model(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Tanh", ["h"], ["t"]),
            helper.make_node("Gemm", ["t", "w2", "b2"], ["y"]),
        ],
        [graphs.value("x", ["rows", 4])],
        [graphs.value("y", ["rows", classes])],
        {name: value.astype(np.float32) for name, value in held.items()},
        opset=opset,
    )


def data(size: int = 24, seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, 4)).astype(np.float32), rng.integers(0, 3, size)


def trained(
    base: Mapping[str, Any],
    batch: Any,
    *,
    model: Callable[[], Any] = mlp,
    epochs: int = 1,
    settings: Mapping[str, Any] = {},
    **compiled: Any,
) -> Dict[str, Any]:
    """Weights, slots and records of a program."""
    shape = {"batch__global_batch_size": 8, "batch__micro_batch_size": 2, "data__shuffle": False}
    with ui.Session(plan(base, **{**shape, **settings})) as session:
        compiled.setdefault("optimizer", ui.optim.SGD(lr=0.1, momentum=0.9))
        compiled.setdefault("loss", ui.losses.softmax_cross_entropy())
        program = session.compile(model(), **compiled)  # a model of its own: it gets the weights
        loader = session.loader(batch)
        records = [program.step(call) for _ in range(epochs) for call in loader]
        return {
            "weights": program.weights(),
            "slots": sorted(s.name for s in program._executor.tensors() if s.role == "slot"),
            "losses": [record.loss for record in records],
            "counts": [(r.samples, r.weight, r.lr, r.updates) for r in records],
        }


def change(got: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Relative norm of the difference of all weights."""
    assert set(got) == set(expected)
    over = sum(float(np.square(got[n] - expected[n], dtype=np.float64).sum()) for n in got)
    under = sum(float(np.square(expected[n], dtype=np.float64).sum()) for n in expected)
    return float(np.sqrt(over / under))

"""Small trainings on any target, and what they came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow as tf

import unified_ipu as ui

keras: Any = tf.keras
layers: Any = tf.keras.layers

HOST: Dict[str, Any] = {"target": "cpu"}


def device(**settings: Any) -> Dict[str, Any]:
    """Two replicas that accumulate 4 micro-batches of 8 rows: G = 64."""
    return {
        "target": "ipu-emulated",
        "batch.global_batch_size": 64,
        "batch.micro_batch_size": 8,
        "batch.remainder": "pad",
        "ipu.replicas_per_process": 2,
        **settings,
    }


def numbers(rows: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 3)).astype(dtype), rng.normal(size=(rows, 1)).astype(dtype)


def classes(rows: int) -> Any:
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 3)).astype("float32"), rng.integers(0, 4, rows)


def mlp(outputs: int = 1, **options: Any) -> Any:
    """Three features, eight hidden; the same weights every time."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(8, activation="tanh", **options),
            layers.Dense(outputs),
        ]
    )
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    return model


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    weights: List[Any]
    exact: List[Tuple[Any, ...]]
    losses: List[float]
    certificates: List[str]
    tensors: Dict[str, Any]
    model: Any


@dataclass(frozen=True)
class Case:
    """A training, apart from its plan; models and optimizers are made anew for each."""

    data: Any
    updates: int
    model: Callable[[], Any] = mlp
    optimizer: Callable[[], Any] = lambda: ui.optim.SGD(0.05, momentum=0.9)
    loss: Callable[[], Any] = keras.losses.MeanSquaredError
    options: Dict[str, Any] = field(default_factory=dict)

    def train(self, plan: Dict[str, Any]) -> Trained:
        with ui.Session(ui.Plan().replace(plan)) as session:
            with session.scope():
                model = self.model()
            program = session.compile(
                model, loss=self.loss(), optimizer=self.optimizer(), **self.options
            )
            loader = session.loader(ui.data.arrays(*self.data))
            records, certificates, happened = [], [], 0
            while happened < self.updates:
                for call in loader:
                    records.append(program.step(call))
                    happened += records[-1].updates
                certificates.append(str(loader.certificate()))
            return Trained(
                [np.array(w) for w in model.get_weights()],
                [(r.update, r.samples, r.weight, r.lr, r.updates, r.skipped) for r in records],
                [float(r.loss) for r in records],
                certificates,
                program.weights(),
                model,
            )

    def pair(self, settings: Optional[Dict[str, Any]] = None) -> Tuple[Trained, Trained]:
        """On the host and on emulated devices, by plans that differ in the target alone."""
        plan = device(**(settings or {}))
        host = {k: v for k, v in plan.items() if not k.startswith("ipu.")}
        return self.train({**host, **HOST}), self.train(plan)


def distance(ours: List[Any], theirs: List[Any]) -> float:
    """Relative norm of the difference of all weights."""
    difference = sum(float(np.sum((a - b) ** 2)) for a, b in zip(ours, theirs))
    return float(np.sqrt(difference / sum(float(np.sum(b**2)) for b in theirs)))


def check_same(host: Trained, there: Trained, bound: float) -> None:
    """L5: decisions, W, samples and rates exactly, the rest to rounding."""
    assert there.exact == host.exact
    assert there.certificates == host.certificates
    assert np.allclose(there.losses, host.losses, rtol=100 * bound)
    assert distance(there.weights, host.weights) < bound

"""Metrics as (sum, weight) pairs, computed on the host from numpy arrays.

A metric is any ``callable(outputs, targets) -> (sum, weight)``. A plain callable gets the
framework's own tensors; a ``HostMetric`` gets numpy arrays from every adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Tuple

import numpy as np

from unified_ipu.errors import ConfigError


@dataclass(frozen=True)
class HostMetric:
    """A metric over numpy arrays; adapters convert outputs and targets before they call it.

    Args:
        name: Shown in errors.
        function: ``(outputs, targets) -> (sum, weight)``.
    """

    name: str
    function: Callable[[Any, Any], Tuple[float, float]]

    def __call__(self, outputs: Any, targets: Any) -> Tuple[float, float]:
        """Sum and weight over the given rows."""
        return self.function(outputs, targets)


def _accuracy(outputs: Any, targets: Any) -> Tuple[float, float]:
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    if outputs.ndim != targets.ndim + 1 or outputs.shape[:1] != targets.shape[:1]:
        raise ConfigError(
            f"accuracy got outputs of shape {outputs.shape} and targets of shape {targets.shape}; "
            "expected outputs [rows, classes, ...] and targets [rows, ...] with class indices"
        )
    hits = outputs.argmax(axis=1) == targets
    return float(np.count_nonzero(hits)), float(hits.size)


@dataclass(frozen=True)
class GatheredMetric:
    """A metric that needs all rows at once, such as the area under a curve.

    ``evaluate`` gathers outputs and targets of all ranks in the order of the samples and calls it
    once, on every rank with the same rows. This takes memory for all of them on every rank.

    Args:
        name: Shown in errors.
        function: ``(outputs, targets) -> number``, numpy arrays of all samples.
    """

    name: str
    function: Callable[[Any, Any], float]


def gathered(function: Callable[[Any, Any], float]) -> GatheredMetric:
    """Make a metric of a function that needs all outputs and targets, ``[samples, ...]``."""
    return GatheredMetric(getattr(function, "__name__", "gathered"), function)


accuracy = HostMetric("accuracy", _accuracy)
"""Share of rows whose largest output (axis 1) is the target class."""

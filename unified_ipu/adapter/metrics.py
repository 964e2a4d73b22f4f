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


accuracy = HostMetric("accuracy", _accuracy)
"""Share of rows whose largest output (axis 1) is the target class."""

"""The numbers that are reduced before the gradients: W, S, flags and metrics, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Tally
from unified_ipu.errors import ConfigError

MAX_METRICS = 32
_FIXED = 4  # weight, loss sum, samples, ranks whose metric names changed


@dataclass(frozen=True)
class HeaderLayout:
    """Where each number lies: four fixed ones, a use flag a parameter, room for the metrics.

    Args:
        num_parameters: Trained tensors, in the order of ``Replica.tensors()``.
    """

    num_parameters: int

    @property
    def size(self) -> int:
        """Length of the header, in float64 numbers."""
        return _FIXED + self.num_parameters + 2 * MAX_METRICS

    def write(
        self, header: Any, tally: Tally, *, samples: int, metric_names: Optional[Sequence[str]]
    ) -> None:
        """Fill this rank's header, shape ``[size]`` float64, from its tally.

        ``metric_names`` is None until a rank with samples has named them. A rank that counted
        nothing has no metrics, so only one that counted can disagree about the names.
        """
        header[:] = 0.0
        header[0] = tally.weight
        header[1] = tally.loss_sum
        header[2] = samples
        header[_FIXED : _FIXED + self.num_parameters] = tally.used
        if not metrics_fit(tally, metric_names):
            header[3] = 1.0
            return
        if not tally.metrics:
            return
        start = _FIXED + self.num_parameters
        for index, name in enumerate(metric_names or ()):
            header[start + 2 * index], header[start + 2 * index + 1] = tally.metrics[name]

    def used(self, header: Any) -> Sequence[bool]:
        """One flag a parameter: whether any rank used it."""
        flags: Sequence[bool] = (header[_FIXED : _FIXED + self.num_parameters] > 0).tolist()
        return flags

    def metrics(self, header: Any, names: Sequence[str]) -> Dict[str, Tuple[float, float]]:
        """``{name: (sum, weight)}`` over all ranks."""
        start = _FIXED + self.num_parameters
        pairs = header[start : start + 2 * len(names)].reshape(-1, 2).tolist()
        return {name: (pair[0], pair[1]) for name, pair in zip(names, pairs)}


def metrics_fit(tally: Tally, names: Optional[Sequence[str]]) -> bool:
    """Whether a rank's metrics are those that were agreed on, or it has counted nothing."""
    if not tally.metrics:
        return not names or tally.weight == 0.0
    return sorted(tally.metrics) == list(names or ())


def check_metric_names(names: Sequence[str]) -> Tuple[str, ...]:
    """Return the names in the order of the header.

    Raises:
        ConfigError: If there are more than ``MAX_METRICS``.
    """
    if len(names) > MAX_METRICS:
        raise ConfigError(
            f"the objective returned {len(names)} metrics; at most {MAX_METRICS} travel with an "
            "update. Compute the others in evaluate()"
        )
    return tuple(sorted(names))


def merge_metrics(
    total: Dict[str, Tuple[float, float]], part: Mapping[str, Tuple[float, float]]
) -> None:
    """Add (sum, weight) pairs in place."""
    for name, (value, weight) in part.items():
        known = total.get(name, (0.0, 0.0))
        total[name] = (known[0] + float(value), known[1] + float(weight))


def ratio(pair: Tuple[float, float]) -> float:
    """Return sum / weight, nan when nothing counted."""
    return pair[0] / pair[1] if pair[1] else float(np.nan)

"""Metrics that need all rows at once: outputs and targets kept on each rank, then gathered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from unified_ipu.adapter import GatheredMetric, HostMetric, Metric, MicroBatch
from unified_ipu.comms import Communicator
from unified_ipu.errors import ConfigError
from unified_ipu.session.prediction import Outputs

ROWS = "rows kept for gathered metrics"


class Gathering:
    """Takes the gathered metrics out of an evaluation's metrics and computes them at its end.

    Args:
        metrics: As the user gave them, of both kinds.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._whole = {
            name: metric for name, metric in metrics.items() if isinstance(metric, GatheredMetric)
        }
        self._seen: List[Tuple[Any, Any]] = []
        self._rows = Outputs("all")
        self.added_up: Dict[str, Metric] = {
            name: metric for name, metric in metrics.items() if name not in self._whole
        }
        """What the executor computes: the metrics that add up, and one that keeps the rows."""
        if self._whole:
            self.added_up[ROWS] = HostMetric(ROWS, self._see)

    def _see(self, outputs: Any, targets: Any) -> Tuple[float, float]:
        self._seen.append((outputs, targets))
        return 0.0, 0.0

    def keep(self, micro: MicroBatch) -> None:
        """Keep the rows of the micro-batch that was just evaluated; padding is gone already."""
        if not self._whole:
            return
        ids = micro.ids
        if micro.sample_weight is not None:
            counted = np.asarray(micro.sample_weight) != 0
            ids = None if ids is None else np.asarray(ids)[counted]
            micro = replace(micro, rows=int(np.count_nonzero(counted)), sample_weight=None)
        self._rows.add(replace(micro, ids=ids), self._seen.pop())

    def results(self, communicator: Communicator) -> Dict[str, float]:
        """Return every gathered metric, the same on all ranks; collective if there is one.

        Raises:
            ConfigError: If one of them returns no number.
        """
        if not self._whole:
            return {}
        rows = self._rows.result(communicator)
        found: Dict[str, float] = {}
        for name, metric in self._whole.items():
            value = metric.function(*rows) if rows is not None else float("nan")
            try:
                found[name] = float(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"metric {name!r} returned a {type(value).__name__}; expected one number"
                ) from error
        return found

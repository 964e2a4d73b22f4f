"""What one update counted, read back from the device once."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Tally


class Counting:
    """Collects the numbers of micro-batches as they are on the device."""

    def __init__(self) -> None:
        self._numbers: List[Any] = []
        self._names: List[Tuple[str, ...]] = []

    def clear(self) -> None:
        """Forget the update before."""
        self._numbers, self._names = [], []

    def add(self, numbers: Any, names: Tuple[str, ...]) -> None:
        """Keep the numbers of one micro-batch.

        Args:
            numbers: float64 ``[2 + 2 * metrics]``: S, W, then sum and weight of each metric.
            names: Of the metrics.
        """
        self._numbers.append(numbers)
        self._names.append(names)

    def read(self, used: Sequence[bool]) -> Tally:
        """Sums over the micro-batches, in float64."""
        loss_sum, weight = 0.0, 0.0
        metrics: Dict[str, Tuple[float, float]] = {}
        for values, names in zip(_on_host(self._numbers), self._names):
            counted = float(values[1])
            # A mean over nothing is NaN, but its sum is 0.
            loss_sum += 0.0 if counted == 0.0 else float(values[0])
            weight += counted
            for index, name in enumerate(names):
                before = metrics.get(name, (0.0, 0.0))
                found = float(values[2 * index + 2]), float(values[2 * index + 3])
                metrics[name] = (before[0] + found[0], before[1] + found[1])
        return Tally(loss_sum=loss_sum, weight=weight, used=used, metrics=metrics)


def _on_host(numbers: Sequence[Any]) -> List[Any]:
    if not numbers:
        return []
    # On the CPU reading costs nothing; from a device everything is read at once.
    if len(numbers) == 1 or "CPU" in numbers[0].device:
        return [tensor.numpy() for tensor in numbers]
    lengths = np.cumsum([int(tensor.shape[0]) for tensor in numbers])
    whole = tf.concat(list(numbers), 0).numpy()
    return list(np.split(whole, lengths[:-1]))

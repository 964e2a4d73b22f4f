"""What one update counted, read back from the device once."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import torch

from unified_ipu.adapter import Tally
from unified_ipu.errors import ConfigError
from unified_ipu_torch.objectives import Score


class Counting:
    """Collects S, W and metrics of micro-batches as they are, numbers or tensors."""

    def __init__(self) -> None:
        self._scores: List[Score] = []

    def clear(self) -> None:
        """Forget the update before."""
        self._scores = []

    def add(self, score: Score) -> None:
        """Keep one micro-batch's numbers, without its graph."""
        value = None if score.value is None else score.value.detach()
        metrics = {
            name: (_detached(pair[0]), _detached(pair[1]))
            for name, pair in checked_metrics(score.metrics).items()
        }
        self._scores.append(Score(value, score.factor, _detached(score.weight), metrics))

    def read(self, used: Sequence[bool]) -> Tally:
        """Sums over the micro-batches, in float64."""
        numbers: List[Any] = []
        for score in self._scores:
            numbers += [0.0 if score.value is None else score.value, score.factor, score.weight]
            for pair in score.metrics.values():
                numbers += pair
        values = iter(read_numbers(numbers))
        loss_sum, weight = 0.0, 0.0
        metrics: Dict[str, Tuple[float, float]] = {}
        for score in self._scores:
            value, factor, counted = next(values), next(values), next(values)
            # A mean over nothing is NaN, but its sum is 0.
            loss_sum += 0.0 if counted == 0.0 else value * factor
            weight += counted
            for name in score.metrics:
                before = metrics.get(name, (0.0, 0.0))
                metrics[name] = (before[0] + next(values), before[1] + next(values))
        return Tally(loss_sum=loss_sum, weight=weight, used=list(used), metrics=metrics)


def checked_metrics(metrics: Any) -> Dict[str, Tuple[Any, Any]]:
    """Return the metrics of an objective.

    Raises:
        ConfigError: If one is no (sum, weight) pair.
    """
    for name, pair in metrics.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # noqa: PLR2004 a pair
            raise ConfigError(
                f"metric {name!r} is a {type(pair).__name__}; expected a pair (sum, weight), so "
                "that it can be added up over micro-batches and ranks"
            )
    return dict(metrics)


def read_numbers(numbers: Sequence[Any]) -> List[float]:
    """All of them as Python numbers, with one copy from the device."""
    on_device = [
        (index, number)
        for index, number in enumerate(numbers)
        if isinstance(number, torch.Tensor) and number.device.type != "cpu"
    ]
    values: List[float] = [0.0] * len(numbers)
    if on_device:
        stacked = torch.stack([number.double().reshape(()) for _, number in on_device])
        for (index, _), value in zip(on_device, stacked.tolist()):
            values[index] = value
    taken = {index for index, _ in on_device}
    for index, number in enumerate(numbers):
        if index not in taken:
            values[index] = float(number)
    return values


def _detached(number: Any) -> Any:
    return number.detach() if isinstance(number, torch.Tensor) else number

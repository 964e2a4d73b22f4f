"""What one update counted, read back from the device once."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch

from unified_ipu.adapter import Tally
from unified_ipu.errors import ConfigError
from unified_ipu_torch.objectives import Score


class Counting:
    """Collects S, W and metrics of micro-batches as they are, numbers or tensors."""

    def __init__(self) -> None:
        self._loss_sum, self._weight = 0.0, 0.0  # of what is read already
        self._numbers: List[Any] = []  # value, factor, weight, then metrics, for each micro-batch
        self._names: List[Tuple[str, ...]] = []

    def clear(self) -> None:
        """Forget the update before."""
        self._loss_sum, self._weight = 0.0, 0.0
        self._numbers, self._names = [], []

    def add(self, score: Score) -> None:
        """Keep one micro-batch's numbers, without its graph."""
        value, weight = score.value, score.weight
        if type(weight) is float and value is not None and value.is_cpu and not score.metrics:
            if weight != 0.0:  # a mean over nothing is NaN, but its sum is 0
                self._loss_sum += value.item() * score.factor
                self._weight += weight
            return
        self._numbers += (_kept(0.0 if value is None else value), score.factor, _kept(weight))
        names: Tuple[str, ...] = ()
        if score.metrics:
            names = tuple(checked_metrics(score.metrics))
            for pair in score.metrics.values():
                self._numbers += (_kept(pair[0]), _kept(pair[1]))
        self._names.append(names)

    def read(self, used: Sequence[bool]) -> Tally:
        """Sums over the micro-batches, in float64."""
        if not self._numbers:
            return Tally(self._loss_sum, self._weight, used)
        values = iter(read_numbers(self._numbers))
        loss_sum, weight = self._loss_sum, self._weight
        metrics: Dict[str, Tuple[float, float]] = {}
        for names in self._names:
            value, factor, counted = next(values), next(values), next(values)
            loss_sum += 0.0 if counted == 0.0 else value * factor
            weight += counted
            for name in names:
                before = metrics.get(name, (0.0, 0.0))
                metrics[name] = (before[0] + next(values), before[1] + next(values))
        return Tally(loss_sum=loss_sum, weight=weight, used=used, metrics=metrics)


def checked_metrics(metrics: Mapping[str, Any]) -> Dict[str, Tuple[Any, Any]]:
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
    waiting = [n for n in numbers if isinstance(n, torch.Tensor)]
    if not waiting:
        return list(map(float, numbers))
    stacked = torch.stack([n.detach().double().reshape(()) for n in waiting])
    read = iter(stacked.tolist())
    return [next(read) if isinstance(n, torch.Tensor) else float(n) for n in numbers]


def _kept(number: Any) -> Any:
    if not isinstance(number, torch.Tensor):
        return number
    # On the host reading costs nothing; from a device everything is read at once.
    return number.item() if number.is_cpu else number.detach()

"""How a device turns the gradients of micro-batches into the one of an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Protocol, Sequence

from unified_ipu.device.fabric import Fabric, Naming
from unified_ipu.errors import ConfigError

ACCUMULATIONS = ("sum", "mean_post", "mean_scaled", "mean_running")
OVER_REPLICAS = ("sum", "mean")

Gradients = Mapping[str, Any]


class Arithmetic(Protocol):
    """What a skin must be able to do with its own arrays."""

    def start(self, gradient: Any) -> Any:
        """A new accumulator that holds ``gradient``, in the type of accumulators."""
        ...

    def add(self, total: Any, value: Any) -> Any:
        """The sum, in the type of ``total``; may reuse its memory."""
        ...

    def scale(self, value: Any, factor: float) -> Any:
        """The product, in the type of ``value``."""
        ...

    def finish(self, total: Any, factor: float) -> Any:
        """The product in the type that the optimizer computes in."""
        ...

    def across(self, total: Any, fabric: Fabric) -> Any:
        """The sum of ``total`` over the processes of ``fabric``."""
        ...


@dataclass(frozen=True)
class Reduction:
    """The native reduction settings of one API.

    Args:
        accumulation: Over the micro-batches of a replica. ``"sum"``; ``"mean_post"``: added, and
            divided once at the end; ``"mean_scaled"``: divided, then added; ``"mean_running"``: the
            mean so far, which never exceeds the largest gradient.
        replicas: Over all replicas of all processes, ``"sum"`` or ``"mean"``. The collective itself
            always sums.

    Raises:
        ConfigError: If one of them has no such name.
    """

    accumulation: str = "sum"
    replicas: str = "sum"

    def __post_init__(self) -> None:
        if self.accumulation not in ACCUMULATIONS or self.replicas not in OVER_REPLICAS:
            raise ConfigError(
                f"accumulation must be one of {ACCUMULATIONS} and replicas one of "
                f"{OVER_REPLICAS}, got {self.accumulation!r} and {self.replicas!r}"
            )

    def divisor(self, accumulation: int, replicas: int) -> int:
        """What is divided by once, after the sums; ``replicas`` over all processes."""
        after = accumulation if self.accumulation == "mean_post" else 1
        return after * (replicas if self.replicas == "mean" else 1)


class Accumulator:
    """The gradients of one replica over an update.

    Args:
        reduction: Native settings.
        count: Accumulation steps that will come.
        arithmetic: On the skin's arrays.
    """

    def __init__(self, reduction: Reduction, count: int, arithmetic: Arithmetic) -> None:
        self.totals: Dict[str, Any] = {}
        self._kind = reduction.accumulation
        self._count = count
        self._taken = 0
        self._arithmetic = arithmetic

    def add(self, gradients: Gradients) -> None:
        """Take the gradients of the next micro-batch; a name may be missing: then it adds 0."""
        n = self._taken
        self._taken += 1
        if self._kind == "mean_running" and n:
            self.totals = {
                name: self._arithmetic.scale(total, n / (n + 1))
                for name, total in self.totals.items()
            }
        for name, gradient in gradients.items():
            value = self._weigh(self._arithmetic.start(gradient), n)
            if name in self.totals:
                value = self._arithmetic.add(self.totals[name], value)
            self.totals[name] = value

    def _weigh(self, value: Any, n: int) -> Any:
        if self._kind == "mean_scaled" and self._count > 1:
            return self._arithmetic.scale(value, 1.0 / self._count)
        if self._kind == "mean_running" and n:
            return self._arithmetic.scale(value, 1.0 / (n + 1))
        return value


def reduce_replicas(
    replicas: Sequence[Gradients],
    *,
    factor: float,
    arithmetic: Arithmetic,
    fabric: Fabric,
) -> Dict[str, Any]:
    """Sum over the replicas of all processes and scale once.

    Args:
        replicas: What each replica of this process accumulated.
        factor: 1 / (divisor x loss scale).
        arithmetic: On the skin's arrays.
        fabric: The processes of the device.

    Returns:
        One gradient a name, ready for the optimizer. A parameter that no replica here used is not
        among them; processes that used others than this one are an error on all of them.
    """
    names: List[str] = []
    for gradients in replicas:
        names.extend(name for name in gradients if name not in names)
    reduced = {}
    for name in names:
        total = None
        for gradients in replicas:
            if name not in gradients:
                continue
            value = gradients[name]
            total = value if total is None else arithmetic.add(total, value)
        if fabric.size > 1:
            total = arithmetic.across(total, Naming(fabric, name))
        reduced[name] = arithmetic.finish(total, factor)
    return reduced

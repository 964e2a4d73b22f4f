"""Two ways from accumulated gradients to the ones that are applied: alone, and with other ranks.

Both end in the same ``Outcome``. Alone, nothing is copied: the replica's own gradients are scaled
when they are applied. With other ranks, they lie in shared memory and the reducer divides and clips
while it hands out the sums.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

from unified_ipu.adapter import Replica, Tally, TensorSpec, Update
from unified_ipu.comms import Communicator, GradientReducer, NonFinite
from unified_ipu.engine.header import HeaderLayout, metrics_fit
from unified_ipu.engine.rules import UpdateRules
from unified_ipu.events import PhaseClock
from unified_ipu.plan import plan_buckets

_NO_METRICS: Mapping[str, Tuple[float, float]] = MappingProxyType({})


class Outcome(NamedTuple):
    """What all ranks agreed on about one update.

    Args:
        loss_sum: S over the world.
        weight: W over the world.
        samples: Real samples over the world.
        happened: Whether the optimizer may step.
        used: One flag a trained tensor: whether any rank used it.
        scale: What ``Replica.apply`` still has to multiply the gradients with.
        norm: Global norm of the divided gradient before clipping.
        metrics: ``{name: (sum, weight)}`` over the world.
        changed_metrics: Ranks whose metric names changed.
        non_finite: The first gradient that is not finite, or None.
    """

    loss_sum: float
    weight: float
    samples: int
    happened: bool
    used: Sequence[bool] = ()
    scale: float = 1.0
    norm: float = math.nan
    metrics: Mapping[str, Tuple[float, float]] = _NO_METRICS
    changed_metrics: int = 0
    non_finite: Optional[NonFinite] = None


class GradientPath(Protocol):
    """From the gradients of one update's micro-batches to those the optimizer sees."""

    def scale(self, update: Update) -> float:
        """Return the factor every micro-batch's dS is multiplied with."""
        ...

    def finish(
        self,
        update: Update,
        tally: Tally,
        *,
        samples: int,
        ran: bool,
        metric_names: Optional[Sequence[str]],
    ) -> Outcome:
        """Reduce, divide and clip; collective."""
        ...

    def close(self) -> None:
        """Free what was allocated."""
        ...


class _Shared:
    """The division, the same on both paths."""

    def __init__(self, rules: UpdateRules) -> None:
        self.rules = rules

    def factor(self, weight: float, accumulated_scale: float) -> Optional[float]:
        """Return what turns the accumulated sum into g, or None if the update may not happen."""
        if not weight > 0.0 or not math.isfinite(weight):
            return None
        return (1.0 if self.rules.reduction == "sum" else 1.0 / weight) / accumulated_scale


class _LocalPath(_Shared):
    """One replica: what it counted is the outcome, the gradients stay the framework's."""

    def __init__(self, replica: Replica, rules: UpdateRules, trained: Sequence[TensorSpec]) -> None:
        super().__init__(rules)
        self._replica = replica
        self._trained = trained
        self._scale = 1.0

    def scale(self, update: Update) -> float:
        # When W is known before forward, backward itself divides and no pass over g is needed.
        if self.rules.reduction == "sum":
            self._scale = 1.0
        elif self._replica.counts_samples and update.samples > 0:
            self._scale = 1.0 / update.samples
        else:
            self._scale = 1.0 / self.rules.reference_weight
        return self._scale

    def finish(
        self,
        update: Update,
        tally: Tally,
        *,
        samples: int,
        ran: bool,
        metric_names: Optional[Sequence[str]],
    ) -> Outcome:
        del update, ran
        changed = 0 if metrics_fit(tally, metric_names) else 1
        counted = tally.loss_sum, tally.weight, samples
        metrics = _NO_METRICS
        if tally.metrics and not changed:
            metrics = {name: tally.metrics[name] for name in metric_names or ()}
        factor = None if changed else self.factor(tally.weight, self._scale)
        if factor is None:
            return Outcome(*counted, False, tally.used, metrics=metrics, changed_metrics=changed)
        norm = factor * math.sqrt(self._replica.squared_norm())
        if not math.isfinite(norm):
            bad = self._replica.non_finite()
            non_finite = NonFinite(bad[0] if bad else self._trained[0].name, (0,))
            return Outcome(*counted, False, tally.used, metrics=metrics, non_finite=non_finite)
        limit = self.rules.clip_norm
        clip = limit / norm if limit is not None and norm > limit else 1.0
        return Outcome(*counted, True, tally.used, factor * clip, norm, metrics)

    def close(self) -> None:
        """Nothing is held."""


class _ReducedPath(_Shared):
    """Several replicas: gradients in the reducer's buffers, one decision for all ranks."""

    def __init__(
        self,
        reducer: GradientReducer,
        header: HeaderLayout,
        rules: UpdateRules,
        *,
        communicator: Communicator,
        clock: PhaseClock,
    ) -> None:
        super().__init__(rules)
        self._header = header
        self._reducer = reducer
        self._communicator = communicator
        self._clock = clock

    def scale(self, update: Update) -> float:
        del update
        return 1.0 / self.rules.reference_weight

    def finish(
        self,
        update: Update,
        tally: Tally,
        *,
        samples: int,
        ran: bool,
        metric_names: Optional[Sequence[str]],
    ) -> Outcome:
        del update
        mine = self._reducer.header
        self._header.write(mine, tally, samples=samples, metric_names=metric_names)
        waited = self._communicator.waiting_seconds
        with self._clock.phase("communication"):
            done = self._reducer.reduce(
                contributes=ran, divide=self._divide, clip_norm=self.rules.clip_norm
            )
        self._clock.move("communication", "waiting", self._communicator.waiting_seconds - waited)
        weight, loss_sum, count, changed = done.header[:4].tolist()
        return Outcome(
            loss_sum,
            weight,
            int(count),
            happened=done.factor is not None and done.non_finite is None,
            used=self._header.used(done.header),
            metrics=self._header.metrics(done.header, metric_names)
            if metric_names
            else _NO_METRICS,
            changed_metrics=int(changed),
            norm=math.sqrt(done.squared_norm) if done.squared_norm >= 0.0 else math.nan,
            non_finite=done.non_finite,
        )

    def _divide(self, header: Any) -> Optional[float]:
        if header[3]:
            return None
        return self.factor(float(header[0]), 1.0 / self.rules.reference_weight)

    def close(self) -> None:
        self._reducer.close()


def local_path(replica: Replica, rules: UpdateRules, trained: Sequence[TensorSpec]) -> GradientPath:
    """Return the path of a world with one replica."""
    return _LocalPath(replica, rules, trained)


def reduced_path(
    replica: Replica,
    header: HeaderLayout,
    rules: UpdateRules,
    trained: List[TensorSpec],
    *,
    communicator: Communicator,
    clock: PhaseClock,
) -> GradientPath:
    """Lay out the buckets, allocate them in the transport's memory and bind the replica."""
    layout = plan_buckets(trained, rules.bucket_bytes)
    reducer = communicator.reducer(layout, header.size)
    replica.bind(layout.slots, reducer.gradients)
    return _ReducedPath(reducer, header, rules, communicator=communicator, clock=clock)

"""Ways from accumulated gradients to the ones that are applied: alone, and with other ranks.

All end in the same ``Outcome``. Alone, nothing is copied: the replica's own gradients are scaled
when they are applied. With other ranks, they lie in shared memory and the reducer divides and clips
while it hands out the sums; buckets in half precision it hands out as they are, see ``_HalfPath``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, List, Optional, Sequence

from unified_ipu.adapter import Replica, Tally, TensorSpec, Update
from unified_ipu.comms import Communicator, GradientReducer, NonFinite, Reduction
from unified_ipu.engine.header import HeaderLayout, metrics_fit
from unified_ipu.engine.loss_scale import LossScale
from unified_ipu.engine.outcome import NO_METRICS, GradientPath, Outcome
from unified_ipu.engine.rules import UpdateRules
from unified_ipu.events import PhaseClock
from unified_ipu.plan import plan_buckets


class _Shared:
    """The division, the same on all paths."""

    def __init__(self, rules: UpdateRules, loss_scale: Optional[LossScale]) -> None:
        self.rules = rules
        self._loss_scale = loss_scale
        self._reference_scale = 1.0 / rules.reference_weight
        self._scale = 1.0

    def scale(self, update: Update) -> float:
        """As ``GradientPath.scale``."""
        plain = self._plain_scale(update)
        self._scale = plain if self._loss_scale is None else self._loss_scale.seed(plain)
        return self._scale

    def _plain_scale(self, update: Update) -> float:
        """The scale without a loss scale."""
        del update
        return self._reference_scale

    def factor(self, weight: float, accumulated_scale: float) -> Optional[float]:
        """Return what turns the accumulated sum into g, or None if the update may not happen."""
        if not weight > 0.0 or not math.isfinite(weight):
            return None
        return (1.0 if self.rules.reduction == "sum" else 1.0 / weight) / accumulated_scale


class _LocalPath(_Shared):
    """One replica: what it counted is the outcome, the gradients stay the framework's."""

    def __init__(
        self,
        replica: Replica,
        rules: UpdateRules,
        trained: Sequence[TensorSpec],
        loss_scale: Optional[LossScale],
    ) -> None:
        super().__init__(rules, loss_scale)
        self._replica = replica
        self._trained = trained

    def _plain_scale(self, update: Update) -> float:
        # When W is known before forward, backward itself divides and no pass over g is needed.
        if self.rules.reduction == "sum":
            return 1.0
        if self._replica.counts_samples and update.samples > 0:
            return 1.0 / update.samples
        return self._reference_scale

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
        has_metrics = bool(tally.metrics or metric_names)
        changed = 1 if has_metrics and not metrics_fit(tally, metric_names) else 0
        counted = tally.loss_sum, tally.weight, samples
        metrics = NO_METRICS
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
        loss_scale: Optional[LossScale],
        *,
        communicator: Communicator,
        clock: PhaseClock,
    ) -> None:
        super().__init__(rules, loss_scale)
        self._header = header
        self._reducer = reducer
        self._communicator = communicator
        self._clock = clock

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
            done = self._reduce(ran)
        self._clock.move("communication", "waiting", self._communicator.waiting_seconds - waited)
        weight, loss_sum, count, changed = done.header[:4].tolist()
        return Outcome(
            loss_sum,
            weight,
            int(count),
            happened=done.factor is not None and done.non_finite is None,
            used=self._header.used(done.header),
            metrics=self._header.metrics(done.header, metric_names) if metric_names else NO_METRICS,
            changed_metrics=int(changed),
            norm=math.sqrt(done.squared_norm) if done.squared_norm >= 0.0 else math.nan,
            non_finite=done.non_finite,
        )

    def _reduce(self, ran: bool) -> Reduction:
        return self._reducer.reduce(
            contributes=ran, divide=self._divide, clip_norm=self.rules.clip_norm
        )

    def _divide(self, header: Any) -> Optional[float]:
        if header[3]:
            return None
        return self.factor(float(header[0]), self._scale)

    def close(self) -> None:
        self._reducer.close()


class _HalfPath(_ReducedPath):
    """Buckets in half precision, which hold the sums as they were scaled for backward.

    Divided and without the loss scale they would be too small for half precision again, so both is
    left to ``Replica.apply``, in the parameters' own type, and clipping with it. Sums are written
    divided by a power of two that is at least the number of ranks: where all contributions fit,
    what is written fits.
    """

    def finish(self, update: Update, tally: Tally, **rest: Any) -> Outcome:
        """As ``_ReducedPath.finish``."""
        outcome = super().finish(update, tally, **rest)
        if not outcome.happened:
            return outcome
        rest_factor = self.factor(outcome.weight, self._scale * self._written)
        if rest_factor is None:
            return outcome._replace(happened=False)
        norm, limit = outcome.norm * rest_factor, self.rules.clip_norm
        clip = limit / norm if limit is not None and norm > limit else 1.0
        return outcome._replace(scale=rest_factor * clip, norm=norm)

    @property
    def _written(self) -> float:
        return 0.5 ** math.ceil(math.log2(self._communicator.size))

    def _reduce(self, ran: bool) -> Reduction:
        return self._reducer.reduce(contributes=ran, divide=self._divide)

    def _divide(self, header: Any) -> Optional[float]:
        return None if super()._divide(header) is None else self._written


def local_path(
    replica: Replica,
    rules: UpdateRules,
    trained: Sequence[TensorSpec],
    loss_scale: Optional[LossScale],
) -> GradientPath:
    """Return the path of a world with one replica."""
    return _LocalPath(replica, rules, trained, loss_scale)


def reduced_path(
    replica: Replica,
    header: HeaderLayout,
    rules: UpdateRules,
    trained: List[TensorSpec],
    loss_scale: Optional[LossScale],
    *,
    communicator: Communicator,
    clock: PhaseClock,
) -> GradientPath:
    """Lay out the buckets, allocate them in the transport's memory and bind the replica."""
    kind, dtype = _ReducedPath, rules.bucket_dtype
    if dtype is not None:
        kind, trained = _HalfPath, [replace(spec, dtype=dtype) for spec in trained]
    layout = plan_buckets(trained, rules.bucket_bytes)
    reducer = communicator.reducer(layout, header.size, getattr(replica, "kernels", None))
    replica.bind(layout.slots, reducer.gradients)
    return kind(reducer, header, rules, loss_scale, communicator=communicator, clock=clock)

"""The update loop of the update law on host targets: accumulate, reduce, divide, clip, apply."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import (
    Call,
    Metric,
    MicroBatch,
    Record,
    Replica,
    Tally,
    TensorSpec,
    Tree,
    Update,
)
from unified_ipu.comms import Communicator
from unified_ipu.engine.checks import check_outcome
from unified_ipu.engine.gradients import local_path, reduced_path
from unified_ipu.engine.header import HeaderLayout, check_metric_names, merge_metrics
from unified_ipu.engine.loss_scale import loss_scale_of
from unified_ipu.engine.outcome import GradientPath, Outcome
from unified_ipu.engine.random_keys import EVALUATION, TRAINING, micro_batch_key
from unified_ipu.engine.rounds import rounds_of
from unified_ipu.engine.rules import UpdateRules
from unified_ipu.errors import ConfigError
from unified_ipu.events import Counters, PhaseClock

_LOSS_SCALE = "loss_scale"


class HostExecutor:
    """Drives one replica of this process through whole calls; the same on all ranks.

    With one replica the gradients stay the framework's own. With more, the replica is bound to
    the reducer's buffers at the first call.
    """

    def __init__(
        self,
        replica: Replica,
        communicator: Communicator,
        *,
        rules: UpdateRules,
        clock: PhaseClock,
        counters: Counters,
    ) -> None:
        self.has_trained = False
        """Whether this rank ever ran a micro-batch: before, running statistics mean nothing."""
        self._replica = replica
        self._communicator = communicator
        self._rules = rules
        self._loss_scale = loss_scale_of(rules)
        self._clock = clock
        self._computing = clock.phase("compute")
        self._counters = counters
        self._rounds = rounds_of(replica, communicator)
        self._path: Optional[GradientPath] = None
        self._is_closed = False
        self._metric_names: Optional[Tuple[str, ...]] = None

    def run(self, call: Call) -> Record:
        """Run the updates of a call.

        Raises:
            NumericsError: On all ranks, if a gradient or W is not finite, or W is negative.
            ConfigError: On all ranks, if the metrics' names changed.
            DataError: On all ranks, if the ranks got another number of samples than expected.
        """
        mark = self._clock.mark()
        rates = self._replica.learning_rates()
        lr = float(rates[0]) * call.lr_factor if rates else math.nan
        loss_sum, weight, samples, happened = 0.0, 0.0, 0, 0
        norm = math.nan
        metrics: Dict[str, Tuple[float, float]] = {}
        path = self._path or self._ready_path()
        with self._computing:  # what waits for data or ranks inside pauses it
            for update in call.updates:
                outcome = self._run_update(path, update, call.lr_factor)
                samples += outcome.samples
                # Where forward overflowed too, its update has no loss to tell.
                if outcome.non_finite is None or math.isfinite(outcome.loss_sum):
                    loss_sum += outcome.loss_sum
                    weight += outcome.weight
                    if outcome.metrics:
                        merge_metrics(metrics, outcome.metrics)
                if outcome.happened:
                    happened += 1
                    norm = outcome.norm
            self._replica.end_call(happened)
        seconds = self._clock.since(mark)
        return Record(
            update=call.updates[-1].number,
            epoch=call.epoch,
            samples=samples,
            loss_sum=loss_sum,
            weight=weight,
            lr=lr,
            grad_norm=norm,
            skipped=len(call.updates) - happened,
            updates=happened,
            metric_sums=metrics,
            seconds=seconds,
            loss_scale=1.0 if self._loss_scale is None else self._loss_scale.value,
        )

    def _run_update(self, path: GradientPath, update: Update, lr_factor: float) -> Outcome:
        replica, rules = self._replica, self._rules
        replica.begin_update()
        scale = path.scale(update)
        samples, ran = 0, False
        for micro in self._rounds(update.micro_batches):
            samples += micro.rows if micro.sample_weight is None else _counted_rows(micro)
            ran = True
            key = micro_batch_key(
                rules.seed,
                program=rules.program,
                kind=TRAINING,
                update=update.number,
                micro_batch=micro.index,
            )
            replica.forward_backward(micro, scale=scale, seed=key, ready=_ignore)
        tally = replica.finish_update()
        self.has_trained = self.has_trained or ran
        if self._metric_names is None:
            with self._clock.phase("communication"):
                self._agree_on_metrics(tally)
        outcome = path.finish(
            update, tally, samples=samples, ran=ran, metric_names=self._metric_names
        )
        check_outcome(update, outcome, self._metric_names, self._loss_scale)
        if outcome.happened:
            replica.apply(lr_factor=lr_factor, used=outcome.used, scale=outcome.scale)
        else:
            overflowed = outcome.non_finite is not None
            self._counters.add("updates_overflowed" if overflowed else "updates_without_weight")
        if self._loss_scale is not None:
            self._loss_scale.after(
                outcome.weight,
                happened=outcome.happened,
                overflowed=outcome.non_finite is not None,
            )
        return outcome

    def _ready_path(self) -> GradientPath:
        """Lay out the gradients at the first call.

        Raises:
            ConfigError: If the program is closed.
        """
        if self._is_closed:
            raise ConfigError("the program is closed; compile it again to go on")
        self._path = self._prepared_path()
        return self._path

    def _prepared_path(self) -> GradientPath:
        trained = trained_tensors(self._replica.tensors())
        if self._communicator.size == 1:
            return local_path(self._replica, self._rules, trained, self._loss_scale)
        with self._communicator.phase("compiling"):
            return reduced_path(
                self._replica,
                HeaderLayout(len(trained)),
                self._rules,
                trained,
                self._loss_scale,
                communicator=self._communicator,
                clock=self._clock,
            )

    def _agree_on_metrics(self, tally: Tally) -> None:
        # A rank without samples cannot know the names: the lowest rank that counted tells them.
        has_names = tally.weight != 0.0 or bool(tally.metrics)
        mine = list(check_metric_names(list(tally.metrics))) if has_names else None
        for names in self._communicator.all_gather_value(mine):
            if names is not None:
                self._metric_names = tuple(names)
                return

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """As ``Replica.evaluate``, with the key of evaluation micro-batch ``micro.index``."""
        return self._replica.evaluate(micro, metrics, seed=self._evaluation_key(micro))

    def predict(self, micro: MicroBatch) -> Tree:
        """As ``Replica.predict``."""
        return self._replica.predict(micro, seed=self._evaluation_key(micro))

    def _evaluation_key(self, micro: MicroBatch) -> int:
        return micro_batch_key(
            self._rules.seed,
            program=self._rules.program,
            kind=EVALUATION,
            update=0,
            micro_batch=micro.index,
        )

    def tensors(self) -> Sequence[TensorSpec]:
        """As ``Replica.tensors``."""
        return self._replica.tensors()

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """As ``Replica.read``."""
        return self._replica.read(names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """As ``Replica.write``."""
        self._replica.write(tensors)

    def scalars(self) -> Dict[str, Any]:
        """As ``Replica.scalars``, with the state of the loss scale."""
        scalars = self._replica.scalars()
        if self._loss_scale is not None:
            scalars = {**scalars, _LOSS_SCALE: self._loss_scale.scalars()}
        return scalars

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """As ``Replica.load_scalars``; a run that had no loss scale leaves it as it is."""
        self._replica.load_scalars({k: v for k, v in scalars.items() if k != _LOSS_SCALE})
        if self._loss_scale is not None and _LOSS_SCALE in scalars:
            self._loss_scale.load_scalars(scalars[_LOSS_SCALE])

    def forget_slots(self) -> None:
        """As ``Replica.forget_slots``."""
        self._replica.forget_slots()

    def hand_back(self) -> None:
        """As ``hand_back`` of the replica, if it has one."""
        hand_back = getattr(self._replica, "hand_back", None)
        if hand_back is not None:
            hand_back()

    def export_onnx(self, path: Path) -> None:
        """As ``export_onnx`` of the replica.

        Raises:
            ConfigError: If it has none.
        """
        export = getattr(self._replica, "export_onnx", None)
        if export is None:
            raise ConfigError("the replica of this model has no export_onnx")
        export(path)

    def close(self) -> None:
        """Let go of the gradients' memory; the model keeps its weights."""
        self._replica.close()
        if self._path is not None:
            self._path.close()
        self._path, self._is_closed = None, True


def trained_tensors(specs: Sequence[TensorSpec]) -> List[TensorSpec]:
    """Those that have a gradient of their own, in order."""
    return [
        spec
        for spec in specs
        if spec.role == "parameter" and spec.trainable and spec.tied_to is None
    ]


def _counted_rows(micro: MicroBatch) -> int:
    return int(np.count_nonzero(np.asarray(micro.sample_weight)))


def _ignore(bucket: int) -> None:
    """Reduction starts after the last micro-batch, so nothing waits for a bucket."""

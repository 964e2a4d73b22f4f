"""The training loop over epochs: calls, evaluation, certificates, callbacks, summary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from unified_ipu.adapter import Call, Metric, Record
from unified_ipu.data import Loader
from unified_ipu.engine import merge_metrics, ratio
from unified_ipu.errors import ConfigError
from unified_ipu.report import Callback, EpochSummary, FitContext, Progress, Summary
from unified_ipu.session.evaluation import check_evaluation_loader
from unified_ipu.session.resuming import Checkpointing, callback_states, load_callback_states
from unified_ipu.session.stopping import Stopping

if TYPE_CHECKING:
    from unified_ipu.session.program import Program

_OVER_THE_WORLD = ("updates_", "samples_padded", "samples_dropped")  # the same on every rank


class Fit:
    """One call of ``Program.fit``; the same on all ranks."""

    def __init__(
        self,
        program: Program,
        train: Any,
        *,
        epochs: int,
        validation: Any,
        every: Union[str, int],
        metrics: Mapping[str, Metric],
        callbacks: Sequence[Callback],
        max_updates: Optional[int],
        checkpoint: Optional[Union[str, Path]] = None,
        resume: Any = None,
    ) -> None:
        _check(train, epochs=epochs, every=every, metrics=metrics, validation=validation)
        _check_max_updates(max_updates)
        self._program = program
        self._train = train
        self._validation = validation
        self._every = every
        self._metrics = metrics
        own = any(isinstance(callback, Progress) for callback in callbacks)
        self._callbacks: List[Callback] = [*callbacks] if own else [Progress(), *callbacks]
        self._has_user_callbacks = bool(callbacks)
        self._is_due = False
        self._checkpointing = Checkpointing(program, train, checkpoint, resume)
        self._notes = self._checkpointing.start()
        load_callback_states(self._callbacks, self._notes.get("callbacks", []))
        # Of the run that is resumed: all that is asked for counts from where it began.
        self._first_epoch = int(self._notes.get("first_epoch", train.epoch))
        self._first_update = int(self._notes.get("first_update", program.update))
        done = program.update - self._first_update
        self._left = None if max_updates is None else max(0, max_updates - done)
        self._since_evaluation = int(self._notes.get("since_evaluation", 0))
        self._results: Dict[str, float] = dict(self._notes.get("results", {}))
        self._tally = _EpochTally.from_dict(self._notes.get("tally", {}))
        self._last_epoch = self._first_epoch + epochs
        self._context = FitContext(
            rank=program.place.rank,
            is_first=program.place.rank == 0,
            epochs=self._last_epoch,
            samples_per_epoch=train.size,
            program=program,
        )

    def run(self) -> Summary:
        """Train, print and return the summary."""
        self._stopping = Stopping(
            self._context,
            self._program.communicator,
            clock=self._program.clock,
            may_ask=self._has_user_callbacks,
        )
        phases = self._program.clock.seconds()
        counts = self._program.counters.as_dict()
        summary: Optional[Summary] = None
        self._tell("on_fit_start")
        try:
            epochs: List[EpochSummary] = []
            while not self._is_over():
                epochs.append(self._epoch(int(self._train.epoch)))
            self._save()  # with each rank's own buffers: it may be gone on with
            self._program.synchronise_buffers()
            self._program.hand_back()
            summary = self._summary(tuple(epochs), phases, counts)
        finally:
            self._tell("on_fit_end", summary)
        self._program.session.print(str(summary))
        return summary

    def _epoch(self, epoch: int) -> EpochSummary:
        started = perf_counter()
        tally = self._tally
        self._tell("on_epoch_start", epoch)
        for call in self._train:
            record = self._program.step(self._cut(call))
            tally.add(record)
            self._tell("on_call_end", record)
            self._count(record)
            is_last = self._train.position == self._train.size
            if (self._left == 0 or self._stopping.is_agreed()) and not is_last:
                break
        certificate = self._train.certificate()
        self._program.check_same_weights()
        if self._every == "epoch":
            self._evaluate()
        summary = EpochSummary(
            epoch=epoch,
            epochs=self._last_epoch,
            samples=tally.samples,
            updates=tally.updates,
            skipped=tally.skipped,
            loss=ratio((tally.loss_sum, tally.weight)),
            metrics={name: ratio(pair) for name, pair in tally.metrics.items()},
            certificate=certificate,
            validation=dict(self._results),
            seconds=perf_counter() - started,
        )
        self._tell("on_epoch_end", summary)
        self._program.session.print(str(summary))
        if self._is_at_end():
            self._tally = _EpochTally()
        if self._every == "epoch" or self._is_due:
            self._save()
        return summary

    def _is_over(self) -> bool:
        if self._train.epoch >= self._last_epoch or self._left == 0:
            return True
        return self._stopping.is_agreed()

    def _cut(self, call: Call) -> Call:
        # Only the updates that max_updates still allows; the loader is put back behind them.
        if self._left is None or len(call.updates) <= self._left:
            return call
        kept = call.updates[: self._left]
        self._train.seek(call.epoch, self._train.position_after(kept[-1].number))
        return replace(call, updates=kept)

    def _count(self, record: Record) -> None:
        ran = record.updates + record.skipped
        if self._left is not None:
            self._left -= ran
        self._since_evaluation += ran
        if isinstance(self._every, int) and self._since_evaluation >= self._every:
            self._since_evaluation %= self._every
            self._evaluate()
            self._is_due = True
            if not self._is_at_end():  # then it is saved once the epoch is summed up
                self._save()

    def _is_at_end(self) -> bool:
        loader, batch = self._train, self._program.session.batch
        if not loader.position:
            return True
        return loader.size is not None and loader.position >= batch.used_samples(loader.size)

    def _save(self) -> None:
        self._checkpointing.save(self._state)
        self._is_due = False

    def _state(self) -> Dict[str, Any]:
        return {
            "first_epoch": self._first_epoch,
            "first_update": self._first_update,
            "since_evaluation": self._since_evaluation,
            "results": self._results,
            "tally": self._tally.to_dict(),
            "callbacks": callback_states(self._callbacks),
        }

    def _evaluate(self) -> None:
        if self._validation is not None:
            self._results = self._program.evaluate(self._validation, self._metrics)

    def _tell(self, event: str, *values: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(self._context, *values)

    def _summary(
        self,
        epochs: Tuple[EpochSummary, ...],
        phases: Mapping[str, float],
        counts: Mapping[str, int],
    ) -> Summary:
        program = self._program
        now = program.clock.seconds()
        mine = {name: now[name] - phases.get(name, 0.0) for name in now}
        ends = program.counters.as_dict()
        counted = {name: ends[name] - counts.get(name, 0) for name in ends}
        everyone = program.communicator.all_gather_value([mine, counted])
        mean: Dict[str, float] = {}
        total: Dict[str, int] = {}
        for theirs, theirs_counted in everyone:
            for name, value in theirs.items():
                mean[name] = mean.get(name, 0.0) + value / len(everyone)
            for name, count in theirs_counted.items():
                # Some every rank counts over the world, the others each for itself.
                others = 0 if name.startswith(_OVER_THE_WORLD) else total.get(name, 0)
                total[name] = others + count
        return Summary(
            epochs=epochs,
            num_replicas=program.place.num_replicas,
            target=program.target,
            seconds=sum(mean.values()),
            phases=mean,
            counts={name: count for name, count in total.items() if count},
            validation=dict(self._results),
            stopped=self._stopping.reason,
        )


class _EpochTally:
    """Sums of an epoch's records."""

    def __init__(self) -> None:
        self.samples = self.updates = self.skipped = 0
        self.loss_sum = self.weight = 0.0
        self.metrics: Dict[str, Tuple[float, float]] = {}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> _EpochTally:
        tally = cls()
        for name, value in values.items():
            setattr(tally, name, value)
        tally.metrics = {name: (pair[0], pair[1]) for name, pair in tally.metrics.items()}
        return tally

    def to_dict(self) -> Dict[str, Any]:
        return dict(vars(self))

    def add(self, record: Record) -> None:
        self.samples += record.samples
        self.updates += record.updates
        self.skipped += record.skipped
        self.loss_sum += record.loss_sum
        self.weight += record.weight
        merge_metrics(self.metrics, record.metric_sums)


def _check(
    train: Any,
    *,
    epochs: Any,
    every: Any,
    metrics: Mapping[str, Metric],
    validation: Any,
) -> None:
    if not isinstance(train, Loader) or not train.train:
        raise ConfigError(
            f"fit needs a training loader, got {train!r}; make one with session.loader(source)"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ConfigError(f"epochs={epochs!r}; expected an integer >= 1")
    if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ConfigError(f'every={every!r}; expected "epoch" or a number of updates >= 1')
    if validation is not None:
        check_evaluation_loader(validation)
    elif metrics:
        raise ConfigError(
            f"metrics={sorted(metrics)} are computed on validation=, which is missing; "
            "the objective's own metrics are in every record"
        )


def _check_max_updates(max_updates: Any) -> None:
    if max_updates is None:
        return
    if isinstance(max_updates, bool) or not isinstance(max_updates, int) or max_updates < 1:
        raise ConfigError(f"max_updates={max_updates!r}; expected None or an integer >= 1")

"""The update law on targets that run whole calls: what is the same on every device.

W is summed over the world before a call, so that what the device differentiates is divided already
and the device only adds. An update without weight is taken out before it is fed; what is left of
the call runs as a shorter one, with the learning rate that every target has for these updates.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import (
    Call,
    Device,
    DeviceTally,
    DeviceUpdate,
    Metric,
    MicroBatch,
    Record,
    TensorSpec,
    Tree,
)
from unified_ipu.comms import Communicator
from unified_ipu.engine.device_feed import DeviceFeed, Weighed
from unified_ipu.engine.device_inference import DeviceInference
from unified_ipu.engine.header import check_metric_names
from unified_ipu.engine.random_keys import TRAINING, micro_batch_key
from unified_ipu.engine.rules import UpdateRules
from unified_ipu.errors import ConfigError, DataError, NumericsError, PlanError
from unified_ipu.events import Counters, PhaseClock
from unified_ipu.plan import DeviceBatch


class DeviceExecutor:
    """Drives the device of this process through whole calls; the same on all ranks.

    Args:
        device: Of an adapter.
        communicator: Of all processes.
        batch: What a call takes.
        rules: Of the plan; clipping and loss scaling are the device's.
        clock: Is told the time of each phase.
        counters: Are told of updates without weight.
    """

    def __init__(
        self,
        device: Device,
        communicator: Communicator,
        *,
        batch: DeviceBatch,
        rules: UpdateRules,
        clock: PhaseClock,
        counters: Counters,
    ) -> None:
        self.has_trained = False
        """Whether this rank ever ran an update: before, running statistics mean nothing."""
        self._device = device
        self._communicator = communicator
        self._rules = rules
        self._clock = clock
        self._counters = counters
        self._feed = DeviceFeed(device, batch)
        self._inference = DeviceInference(device, batch.micro_batch_size, clock)
        self._metric_names: Optional[Tuple[str, ...]] = None
        self._is_closed = False

    def run(self, call: Call) -> Record:
        """Run the updates of a call.

        Raises:
            NumericsError: On all ranks, if W is not finite or negative (nothing is changed), or
                if the loss is not finite: the weights of that call are lost.
            PlanError: On all ranks, if a process has nothing to feed, or padding that its loss
                cannot carry.
            ConfigError: On all ranks, if the metrics' names changed.
            DataError: On all ranks, if the ranks got another number of samples than expected.
        """
        self._check_open()
        mark = self._clock.mark()
        lr = _first(self._device.learning_rates()) * call.lr_factor
        with self._clock.phase("compute"):  # what waits for data or ranks inside pauses it
            weighed = [self._feed.weigh(update) for update in call.updates]
            totals, samples = self._totals(call, weighed)
            fed = [
                one.update(total, self._rules.reduction)
                for one, total in zip(weighed, totals)
                if total > 0.0
            ]
            if len(fed) < len(weighed):
                self._counters.add("updates_without_weight", len(weighed) - len(fed))
            tally = self._run(fed, call) if fed else DeviceTally(0.0)
            self._device.end_call(len(fed))
        seconds, scale = self._clock.since(mark), self._rules.loss_scale
        return Record(
            update=call.updates[-1].number,
            epoch=call.epoch,
            samples=samples,
            loss_sum=tally.loss_sum,
            weight=math.fsum(totals),
            lr=lr,
            grad_norm=math.nan,
            skipped=len(weighed) - len(fed),
            updates=len(fed),
            metric_sums=tally.metrics,
            seconds=seconds,
            loss_scale=1.0 if isinstance(scale, str) else scale,
        )

    def _totals(self, call: Call, weighed: Sequence[Weighed]) -> Tuple[List[float], int]:
        """W of each update over the world, and the samples of the call.

        Raises:
            NumericsError: If a W is not finite or negative.
            PlanError: If a process has nothing to feed, or padding that its loss cannot carry.
            DataError: If there are more or fewer samples than expected.
        """
        rows = [[math.fsum(one.weights), one.samples, bool(one.problem)] for one in weighed]
        mine = np.array(rows, np.float64)
        if self._communicator.size > 1:
            with self._clock.phase("communication"):
                mine = self._communicator.all_reduce(mine, name="weights of a call")
        for update, (weight, samples, _) in zip(call.updates, mine.tolist()):
            if not math.isfinite(weight) or weight < 0.0:
                raise NumericsError(
                    f"update {update.number}: the weight W of the loss is {weight}; expected a "
                    "finite number >= 0. Look at weight= or the objective's weight"
                )
            if update.samples >= 0 and samples != update.samples:
                raise DataError(
                    f"update {update.number}: the ranks read {samples:.0f} samples, the plan has "
                    f"{update.samples}; every rank must run the call of its own loader, and once: "
                    "call.held() gives one that two programs can run"
                )
        stopped = (mine[:, 2] > 0) & (mine[:, 1] > 0)
        if stopped.any():
            self._say_why(weighed[int(np.argmax(stopped))])
        return mine[:, 0].tolist(), int(mine[:, 1].sum())

    def _say_why(self, one: Weighed) -> None:
        """Say on all ranks what keeps an update from being fed.

        Raises:
            PlanError: Always.
        """
        problems = self._communicator.all_gather_value(one.problem)
        rank = next(rank for rank, problem in enumerate(problems) if problem)
        who = f"rank {rank}: " if self._communicator.size > 1 else ""
        raise PlanError(f"update {one.number}: {who}{problems[rank]}")

    def _run(self, updates: Sequence[DeviceUpdate], call: Call) -> DeviceTally:
        """Run what is fed, and add up what all processes counted.

        Raises:
            NumericsError: If the loss is not finite.
        """
        key = micro_batch_key(
            self._rules.seed,
            program=self._rules.program,
            kind=TRAINING,
            update=updates[0].number,
            micro_batch=0,
        )
        mine = self._device.run(updates, lr_factor=call.lr_factor, seed=key)
        self.has_trained = True
        names = self._agreed_names(mine)
        flat = [mine.loss_sum, *(number for name in names for number in mine.metrics[name])]
        whole = np.array(flat, np.float64)
        if self._communicator.size > 1:
            with self._clock.phase("communication"):
                whole = self._communicator.all_reduce(whole, name="loss of a call")
        loss_sum, *numbers = whole.tolist()
        if not math.isfinite(loss_sum):
            first, last = updates[0].number, updates[-1].number
            which = f"update {first}" if first == last else f"updates {first} to {last}"
            raise NumericsError(
                f"{which}: the loss is {loss_sum}; a device skips nothing, so the weights are "
                "changed already: go on from the last checkpoint, and lower the learning rate or "
                "look at the loss"
            )
        pairs = zip(numbers[::2], numbers[1::2])
        return DeviceTally(loss_sum, dict(zip(names, pairs)))

    def _agreed_names(self, tally: DeviceTally) -> Tuple[str, ...]:
        """Names of the objective's metrics.

        Raises:
            ConfigError: If they differ between ranks or calls.
        """
        names = check_metric_names(list(tally.metrics))
        if self._metric_names is None:
            with self._clock.phase("communication"):
                everyone = self._communicator.all_gather_value(list(names))
            if any(theirs != everyone[0] for theirs in everyone):
                raise ConfigError(f"the objective's metrics differ between ranks: {everyone}")
            self._metric_names = names
        if names != self._metric_names:
            raise ConfigError(
                f"the objective's metrics are {list(names)}, not {list(self._metric_names)} as in "
                "the first call; return the same names in every micro-batch"
            )
        return names

    def in_groups(self, micro_batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the micro-batches, after running as many at once as the device takes."""
        return self._inference.in_groups(micro_batches)

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """As ``Replica.evaluate``."""
        self._check_open()
        return self._inference.evaluate(micro, metrics)

    def predict(self, micro: MicroBatch) -> Tree:
        """As ``Replica.predict``."""
        self._check_open()
        return self._inference.predict(micro)

    def tensors(self) -> Sequence[TensorSpec]:
        """As ``Device.tensors``."""
        return self._device.tensors()

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """As ``Device.read``."""
        return self._device.read(names)

    def write(self, tensors: Mapping[str, Any]) -> None:
        """As ``Device.write``."""
        self._device.write(tensors)

    def scalars(self) -> Dict[str, Any]:
        """As ``Device.scalars``."""
        return self._device.scalars()

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """As ``Device.load_scalars``."""
        self._device.load_scalars(scalars)

    def forget_slots(self) -> None:
        """As ``Device.forget_slots``."""
        self._device.forget_slots()

    def hand_back(self) -> None:
        """As ``hand_back`` of the device, if it has one."""
        hand_back = getattr(self._device, "hand_back", None)
        if hand_back is not None:
            hand_back()

    def export_onnx(self, path: Path) -> None:
        """As ``export_onnx`` of the device.

        Raises:
            ConfigError: If it has none.
        """
        export = getattr(self._device, "export_onnx", None)
        if export is None:
            raise ConfigError("the device of this model has no export_onnx")
        export(path)

    def close(self) -> None:
        """Leave the device; the model keeps its weights."""
        if not self._is_closed:
            self._is_closed = True
            self._device.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("the program is closed; compile it again to go on")


def _first(rates: Sequence[float]) -> float:
    return float(rates[0]) if rates else math.nan

"""The loader: an epoch's samples as calls for training, as micro-batches for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from unified_ipu.adapter import Call, MicroBatch, Update
from unified_ipu.comms import Communicator
from unified_ipu.data.adoption import as_source
from unified_ipu.data.audit import Audit, check_agreement
from unified_ipu.data.certificate import Certificate
from unified_ipu.data.cursor import Cursor
from unified_ipu.data.dataloader_source import DataLoaderSource
from unified_ipu.data.dataset_source import Collate
from unified_ipu.data.feeds import open_feed
from unified_ipu.data.frontier import Frontier
from unified_ipu.data.pipeline_source import StreamSource
from unified_ipu.data.position import cursor_of, delivered_state, differences, facts_of
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.errors import ConfigError, DataError
from unified_ipu.events import Counters, PhaseClock
from unified_ipu.plan import BatchPlan, DataSettings

if TYPE_CHECKING:
    from typing_extensions import Self


class Loader:
    """Deals a source to the replicas of the world, each sample once an epoch.

    ``for call in loader`` yields what is left of the current epoch; when it is exhausted the
    loader stands at the start of the next. With ``train=False`` it yields this process's
    micro-batches of one pass and has no position. Making a loader is collective.

    Args:
        source: A source, or what ``as_source`` takes for one.
        batch: How samples are dealt.
        replica: The first replica that this process feeds.
        communicator: Of all replicas.
        seed: Keys the order and the seeds of samples, with the epoch.
        shuffle: Whether training is in a keyed order; evaluation never is.
        train: Whether it feeds updates.
        micro_batch_size: Of evaluation, if it is not that of ``batch``.
        collate: Turns a list of samples into a batch, for map-style datasets.
        name: For messages.
        clock: Is told the time spent waiting for and building batches.
        counters: Are told what was dropped, padded, skipped or copied, counted over the world.
        settings: The plan's ``[data]`` table.
        search_path: Where the data process looks for the user's modules first.
        replicas_per_process: Replicas that this process feeds, as every other one does.

    Raises:
        ConfigError: If the arguments contradict each other, or differ between ranks.
        DataError: If the source cannot be opened.
    """

    def __init__(
        self,
        source: Any,
        *,
        batch: BatchPlan,
        replica: int,
        communicator: Communicator,
        seed: int,
        shuffle: bool,
        train: bool,
        micro_batch_size: Optional[int] = None,
        collate: Optional[Collate] = None,
        name: str = "loader",
        clock: Optional[PhaseClock] = None,
        counters: Optional[Counters] = None,
        settings: Optional[DataSettings] = None,
        search_path: Sequence[str] = (),
        replicas_per_process: int = 1,
    ) -> None:
        self.name = name
        self.epoch = 0
        self.position = 0
        self._source = as_source(source, collate)
        _check_micro_batch_size(micro_batch_size, batch, train=train)
        self._is_stream = isinstance(self._source, StreamSource)
        self.size: Optional[int] = None
        """Samples of an epoch; of a stream those of the one that ended last, None during one."""
        if isinstance(self._source, DataLoaderSource):
            self._source.check(batch, train=train, micro_batch_size=micro_batch_size)
        if not isinstance(self._source, StreamSource):
            self.size = self._source.size
            if train or self.size < 1:
                batch.check_samples(self.size)
        self._batch = batch
        self._replica = replica
        self._communicator = communicator
        self._clock = clock or PhaseClock()
        self._counters = counters or Counters()
        self._schedule = Schedule(
            batch,
            self.size or 0,
            seed,
            shuffle and train and not isinstance(self._source, (StreamSource, DataLoaderSource)),
            train,
            micro_batch_size,
            replicas_per_process,
        )
        check_agreement(communicator, self._schedule, name=name, replica=replica)
        self._audit = Audit(communicator, self._schedule)
        self._feed = open_feed(
            self._source,
            self._schedule,
            replica=replica,
            communicator=communicator,
            counters=self._counters,
            settings=settings or DataSettings(),
            search_path=search_path,
            name=name,
        )
        self._frontier = Frontier(
            self._schedule, replica, feed=self._feed, communicator=communicator, name=name
        )
        self._cursor = Cursor()

    @property
    def train(self) -> bool:
        """Whether it yields calls; otherwise it yields micro-batches."""
        return self._schedule.train

    @property
    def num_updates(self) -> Optional[int]:
        """Updates in an epoch; None as long as the size of a stream is not known."""
        return None if self.size is None else self._batch.num_updates(self.size)

    def __len__(self) -> int:
        """Calls in an epoch; micro-batches of this process in evaluation.

        Raises:
            TypeError: If the size of a stream is not known yet; what ``list`` takes for no length.
        """
        if self.size is None:
            raise TypeError(
                f"{self.name}: a stream has no length before its epoch has ended; count calls, or "
                "use a source with a size"
            )
        if self.train:
            return self._batch.num_calls(self.size)
        size, rows = self.size, self._schedule.micro_batch_size
        replicas = self._schedule.of_process(self._replica)
        return sum(self._batch.num_evaluation_spans(replica, size, rows) for replica in replicas)

    def __iter__(self) -> Iterator[Any]:
        return self._calls() if self.train else self._micro_batches()

    def seek(self, epoch: int, position: int) -> None:
        """Continue from ``position`` of ``epoch``, with the same samples as ever.

        Args:
            epoch: At least 0.
            position: Samples of that epoch that are used already: whole updates, or all.

        Raises:
            ConfigError: If there is no update that starts there, or this is no train loader.
        """
        if not self.train:
            raise ConfigError(f"{self.name}: evaluation has no position; seek a train loader")
        if not self._is_stream:  # the end of a stream shows when it is read
            end = self._batch.used_samples(self._schedule.size)
            self._check_position(epoch, position, end)
            position = min(position, end)
        elif min(epoch, position) < 0:
            raise ConfigError(
                f"{self.name}: got epoch {epoch}, position {position}; expected both >= 0"
            )
        update, cursor = self._update_at(position), self._cursor
        if epoch == cursor.epoch and position <= cursor.end and cursor.can_return_to(update):
            cursor.end = position  # the running loop hands out again what it had not read yet
        else:
            self._cursor = Cursor((), position, epoch)
        self.epoch, self.position = epoch, position

    def _check_position(self, epoch: int, position: int, end: int) -> None:
        whole = position % self._batch.global_batch_size == 0
        if epoch < 0 or not (position == self.size or (whole and 0 <= position <= end)):
            raise ConfigError(
                f"{self.name}: got epoch {epoch}, position {position}; expected an epoch >= 0 and "
                f"a multiple of the global batch {self._batch.global_batch_size} up to {end}, or "
                f"the size {self.size}"
            )

    def position_after(self, update: int) -> int:
        """Samples of the epoch that are used once ``update``, which was handed out, is done."""
        return min((update + 1) * self._batch.global_batch_size, self._cursor.samples)

    def state(self) -> Dict[str, Any]:
        """Where it stands, as JSON values, with what was delivered in the epoch; collective.

        Take it between two calls: a call that was handed out counts as used.

        Raises:
            ConfigError: If this is no train loader.
        """
        self._check_train("saved")
        epoch, position = self.epoch, self.position
        if not self._is_stream and position >= self._batch.used_samples(self._schedule.size):
            epoch, position = epoch + 1, 0
        counted = self._cursor if position else Cursor((), 0, epoch)
        return {
            **facts_of(self._schedule),
            "epoch": epoch,
            "position": position,
            "delivered": delivered_state(self._communicator, counted),
        }

    def differences(self, state: Mapping[str, Any]) -> List[str]:
        """What would give other samples than where ``state`` was taken; empty if nothing.

        Raises:
            ConfigError: If this is no train loader.
        """
        self._check_train("restored")
        return differences(self._schedule, state)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, on all ranks of any world.

        Raises:
            ConfigError: If this loader would give other samples there.
        """
        found = self.differences(state)
        if found:
            raise ConfigError(f"{self.name}: the saved position is of other data: {found}")
        self.seek(int(state["epoch"]), int(state["position"]))
        self._cursor = cursor_of(state, is_first=self._communicator.rank == 0)

    def _check_train(self, done: str) -> None:
        if not self.train:
            raise ConfigError(
                f"{self.name}: evaluation has no position to be {done}; leave this loader out"
            )

    def certificate(self) -> Certificate:
        """What all ranks were given in the last pass until now; collective."""
        return self._audit.certificate(self._cursor)

    def close(self) -> None:
        """Free what was opened, the data process included."""
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _calls(self) -> Iterator[Call]:
        if not self._is_stream and self.position >= self._batch.used_samples(self._schedule.size):
            self.epoch, self.position = self.epoch + 1, 0
        epoch = self.epoch
        cursor = self._begin(epoch)
        samples = self._reach(cursor, self.position)
        numbers = self._next_call(samples)
        if not (self.position or numbers):
            self._batch.check_samples(samples)
        self._frontier.check_start(epoch, self.position, samples)
        while numbers:
            self._move_on(cursor, numbers.start)
            spans = [self._batch.update_span(number, samples) for number in numbers]
            cursor.end = self.position = spans[-1][1]
            if self.position == samples:
                self._count("samples_padded", self._batch.padded(samples))
            updates = tuple(
                Update(number, self._micro_batches_of(cursor, number), stop - start)
                for number, (start, stop) in zip(numbers, spans)
            )
            yield Call(updates, epoch, seed=self._schedule.seed)
            self._move_on(cursor, 0)
            samples = self._reach(cursor, self.position)
            numbers = self._next_call(samples)
        self._move_on(cursor, self._batch.num_updates(samples))
        cursor.is_finished = True
        self.size = samples
        self._count("samples_dropped", self._batch.dropped(samples))
        self.epoch, self.position = epoch + 1, 0

    def _micro_batches(self) -> Iterator[MicroBatch]:
        cursor = self._begin(self.epoch)
        known, samples = 0, self._reach(cursor, 0)
        if not samples:
            self._batch.check_samples(samples)
        while known < samples:
            portion = cursor.take()
            while portion is not None:
                yield self._read(portion)
                self._move_on(cursor, 0)
                portion = cursor.take()
            known, samples = samples, self._reach(cursor, samples)
        self.size = samples
        cursor.is_finished = True

    def _next_call(self, samples: int) -> range:
        """Updates of the next call, from what is known of the epoch; empty at its end."""
        first = self._update_at(self.position)
        return next(self._batch.calls(samples, first), range(0))

    def _reach(self, cursor: Cursor, position: int) -> int:
        with self._clock.phase("data"):
            return self._frontier.reach(cursor, position)

    def _micro_batches_of(self, cursor: Cursor, update: int) -> Iterator[MicroBatch]:
        if update < cursor.floor:
            raise DataError(
                f"{self.name}: the micro-batches of update {update} were asked for after the "
                "loader had moved on; read those of one call in order, before the next call"
            )
        self._move_on(cursor, update)
        portion = cursor.take(update)
        while portion is not None:
            yield self._read(portion)
            self._move_on(cursor, update)
            portion = cursor.take(update)

    def _update_at(self, position: int) -> int:
        return -(-position // self._batch.global_batch_size)

    def _begin(self, epoch: int) -> Cursor:
        before, update = self._cursor, self._update_at(self.position)
        if self._is_stream:
            self.size = None
        with self._clock.phase("data"):
            self._cursor = self._frontier.begin(epoch, self.position)
        if self.position and (before.epoch, before.end) == (epoch, self.position):
            before.skip_to(update)
            self._cursor.inherit(before)
        return self._cursor

    def _move_on(self, cursor: Cursor, update: int) -> None:
        if cursor is not self._cursor:
            raise DataError(
                f"{self.name}: another loop over this loader, or a seek, has begun; a loader has "
                "one position, so make two loaders to read at two"
            )
        self._count("samples_skipped", cursor.skip_to(update))

    def _read(self, portion: Portion) -> MicroBatch:
        with self._clock.phase("data"):
            delivery = self._feed.read(portion)
            self._cursor.receipts.receive(portion, delivery.row_ids)
            ids, weight = delivery.row_ids, portion.sample_weight
            if weight is not None:
                ids = np.where(weight > 0, ids, -1)
        span = portion.span
        return MicroBatch(span.index, delivery.tree, span.rows, weight, ids)

    def _count(self, name: str, count: int) -> None:
        if count:
            self._counters.add(name, count)


def _check_micro_batch_size(given: Optional[int], batch: BatchPlan, *, train: bool) -> None:
    if train and given not in {None, batch.micro_batch_size}:
        raise ConfigError(
            f"micro_batch_size: got {given} for a train loader, but the plan has "
            f"{batch.micro_batch_size}; set batch.micro_batch_size in the plan, or train=False"
        )
    if given is not None and given < 1:
        raise ConfigError(f"micro_batch_size: got {given}; expected an integer >= 1")

"""What all ranks have to agree on: how samples are dealt before, what was delivered after."""

from __future__ import annotations

from typing import Optional

from unified_ipu.comms import Communicator
from unified_ipu.data.certificate import Certificate, add_up
from unified_ipu.data.cursor import Cursor
from unified_ipu.data.receipts import (
    Digest,
    add_digests,
    digest_of,
    digest_of_range,
    subtract_digests,
)
from unified_ipu.data.schedule import Schedule
from unified_ipu.errors import ConfigError

_ROWS_AT_ONCE = 1 << 16


class Audit:
    """Certifies the passes of one loader.

    Args:
        communicator: Of all replicas.
        schedule: Of the loader.
    """

    def __init__(self, communicator: Communicator, schedule: Schedule) -> None:
        self._communicator = communicator
        self._schedule = schedule
        self._all_ids: Optional[Digest] = None

    def certificate(self, cursor: Cursor) -> Certificate:
        """Add up what all ranks were given in the pass of ``cursor``; collective."""
        mine = {"is_finished": cursor.is_finished, "num_due": cursor.num_due}
        messages = self._communicator.all_gather_value({**cursor.receipts.to_message(), **mine})
        finished = all(message["is_finished"] for message in messages)
        schedule = self._schedule
        counts = finished and schedule.train
        facts = {
            "size": schedule.size,
            "expected": cursor.end - cursor.start,
            "dropped": schedule.batch.dropped(schedule.size) if counts else 0,
            "padded": schedule.batch.padded(schedule.size) if counts else 0,
            "is_finished": finished,
            "start": cursor.start,
        }
        if not schedule.train:
            facts["expected"] = sum(message["num_due"] for message in messages)
        return add_up(messages, due=self._due(cursor, is_finished=finished), facts=facts)

    def _due(self, cursor: Cursor, *, is_finished: bool) -> Optional[Digest]:
        """Hash of the ids that were due, from the positions alone; None if ranks differ."""
        if not self._schedule.train:
            return self._of_all() if is_finished else None
        order = self._schedule.order(cursor.epoch)
        if is_finished and cursor.start == 0:
            dropped = order.slice(cursor.end, self._schedule.size)
            return subtract_digests(self._of_all(), digest_of(dropped))
        total: Digest = (0, 0)
        for start in range(cursor.start, cursor.end, _ROWS_AT_ONCE):
            ids = order.slice(start, min(start + _ROWS_AT_ONCE, cursor.end))
            total = add_digests(total, digest_of(ids))
        return total

    def _of_all(self) -> Digest:
        """Hash of all ids; each rank hashes its share, once. Collective the first time."""
        if self._all_ids is None:
            size, rank, world = (
                self._schedule.size,
                self._communicator.rank,
                self._communicator.size,
            )
            share = digest_of_range(size * rank // world, size * (rank + 1) // world)
            total: Digest = (0, 0)
            for message in self._communicator.all_gather_value([str(word) for word in share]):
                total = add_digests(total, (int(message[0]), int(message[1])))
            self._all_ids = total
        return self._all_ids


def check_agreement(
    communicator: Communicator, schedule: Schedule, *, name: str, replica: int
) -> None:
    """Refuse loaders that would not deal one data set once; collective.

    Args:
        communicator: Of all replicas.
        schedule: Of this rank's loader.
        name: Of the loader.
        replica: That this rank feeds.

    Raises:
        ConfigError: On every rank, if two ranks differ or feed the same replica.
    """
    batch = schedule.batch
    facts = {
        "name": name,
        "size": schedule.size,
        "seed": str(schedule.seed),
        "shuffle": schedule.shuffle,
        "train": schedule.train,
        "micro_batch_size": schedule.micro_batch_size or batch.micro_batch_size,
        "global_batch_size": batch.global_batch_size,
        "num_replicas": batch.num_replicas,
        "updates_per_call": batch.updates_per_call,
        "remainder": batch.remainder,
    }
    everybody = communicator.all_gather_value({**facts, "replica": replica})
    for fact in facts:
        values = [message[fact] for message in everybody]
        if any(value != values[0] for value in values):
            raise ConfigError(
                f"{name}: the ranks do not agree on {fact}: got {values} from ranks 0 to "
                f"{len(values) - 1}; make the same loaders in the same order on every rank"
            )
    replicas = [message["replica"] for message in everybody]
    if sorted(replicas) != list(range(batch.num_replicas)):
        raise ConfigError(
            f"{name}: the ranks feed the replicas {replicas}; expected each of 0 to "
            f"{batch.num_replicas - 1} once: shard neither the data nor the loader yourself"
        )

"""What all ranks have to agree on: how samples are dealt before, what was delivered after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Optional, Sequence, Tuple

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
from unified_ipu.errors import ConfigError, DataError

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
        self._all_ids: Tuple[int, Digest] = (0, (0, 0))

    def certificate(self, cursor: Cursor) -> Certificate:
        """Add up what all ranks were given in the pass of ``cursor``; collective.

        Raises:
            DataError: On every rank, if a stream had another size elsewhere.
        """
        mine = {
            "is_finished": cursor.is_finished,
            "num_due": cursor.num_due,
            "samples": cursor.samples,
        }
        messages = self._communicator.all_gather_value({**cursor.receipts.to_message(), **mine})
        finished = all(message["is_finished"] for message in messages)
        schedule = self._schedule
        size = self._size(messages, is_finished=finished)
        counts = finished and schedule.train
        facts = {
            "size": size,
            "expected": cursor.end - cursor.start,
            "dropped": schedule.batch.dropped(size) if counts else 0,
            "padded": schedule.batch.padded(size) if counts else 0,
            "is_finished": finished,
            "start": cursor.start,
        }
        if not schedule.train:
            facts["expected"] = sum(message["num_due"] for message in messages)
        due = self._due(cursor, size, is_finished=finished)
        return add_up(messages, due=due, facts=facts)

    def _size(self, messages: Sequence[Mapping[str, Any]], *, is_finished: bool) -> int:
        """Samples of the source; of a stream those that are known to all ranks together.

        Raises:
            DataError: If a finished stream had another size elsewhere.
        """
        if self._schedule.size:
            return self._schedule.size
        sizes = [message["samples"] for message in messages]
        if is_finished and min(sizes) != max(sizes):
            raise DataError(
                f"the stream ended after {sizes} samples on ranks 0 to {len(sizes) - 1}; its "
                "function must give the same samples on every host"
            )
        return int(max(sizes))

    def _due(self, cursor: Cursor, size: int, *, is_finished: bool) -> Optional[Digest]:
        """Hash of the ids that were due, from the positions alone; None if ranks differ."""
        if not self._schedule.train:
            return self._of_all(size) if is_finished else None
        order = replace(self._schedule, size=max(size, 1)).order(cursor.epoch)
        if is_finished and cursor.start == 0:
            dropped = order.slice(cursor.end, size)
            return subtract_digests(self._of_all(size), digest_of(dropped))
        total: Digest = (0, 0)
        for start in range(cursor.start, cursor.end, _ROWS_AT_ONCE):
            ids = order.slice(start, min(start + _ROWS_AT_ONCE, cursor.end))
            total = add_digests(total, digest_of(ids))
        return total

    def _of_all(self, size: int) -> Digest:
        """Hash of all ids; each rank hashes its share. Collective when the size is a new one."""
        if self._all_ids[0] != size:
            rank, world = self._communicator.rank, self._communicator.size
            share = digest_of_range(size * rank // world, size * (rank + 1) // world)
            total: Digest = (0, 0)
            for message in self._communicator.all_gather_value([str(word) for word in share]):
                total = add_digests(total, (int(message[0]), int(message[1])))
            self._all_ids = (size, total)
        return self._all_ids[1]


def check_agreement(
    communicator: Communicator, schedule: Schedule, *, name: str, replica: int
) -> None:
    """Refuse loaders that would not deal one data set once; collective.

    Args:
        communicator: Of all replicas.
        schedule: Of this rank's loader.
        name: Of the loader.
        replica: The first that this rank feeds.

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
        "replicas_per_process": schedule.replicas_per_process,
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
    firsts = list(range(0, batch.num_replicas, schedule.replicas_per_process))
    if sorted(replicas) != firsts:
        expected = f"each of 0 to {batch.num_replicas - 1} once"
        if schedule.replicas_per_process > 1:
            expected = f"{firsts}, {schedule.replicas_per_process} from each on"
        raise ConfigError(
            f"{name}: the ranks feed the replicas {replicas}; expected {expected}: shard neither "
            "the data nor the loader yourself"
        )

"""Batches that the user passes to ``step`` instead of a loader's call."""

from __future__ import annotations

from typing import Any, List

from unified_ipu.adapter import MicroBatch, Update, rows
from unified_ipu.errors import ConfigError

UNKNOWN_SAMPLES = -1  # only the reduction can tell how many samples the other ranks passed


def update_of(
    batch: Any, number: int, *, micro_batch_size: int, replicas: range, num_replicas: int
) -> Update:
    """Make one update of this rank's micro-batches.

    Args:
        batch: ``(x, y)``, ``(x, y, sample_weight)`` or any tree of arrays; or a list of those,
            one a micro-batch, empty on a rank without samples.
        number: Of the update.
        micro_batch_size: B, the most rows one of them may have.
        replicas: Those of this rank, who get the micro-batches in turn.
        num_replicas: R over the world.

    Raises:
        ConfigError: If one has more rows than ``micro_batch_size``.
        DataError: If the leaves of one differ in their number of rows.
    """
    parts: List[Any] = batch if isinstance(batch, list) else [batch]
    micro_batches: List[MicroBatch] = []
    total = 0
    for position, part in enumerate(parts):
        count = rows(part)
        if count > micro_batch_size:
            raise ConfigError(
                f"micro-batch {position} has {count} rows, batch.micro_batch_size is "
                f"{micro_batch_size}; pass a list of smaller ones, or raise the setting"
            )
        if count:
            turn, which = divmod(position, len(replicas))
            index = turn * num_replicas + replicas[which]
            micro_batches.append(MicroBatch(index, part, count))
            total += count
    return Update(
        number, micro_batches, total if num_replicas == len(replicas) else UNKNOWN_SAMPLES
    )

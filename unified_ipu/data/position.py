"""Where a loader stands, as JSON values: epoch, position, and what was delivered until there."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Mapping

from unified_ipu.comms import Communicator
from unified_ipu.data.cursor import Cursor
from unified_ipu.data.receipts import Receipts, add_digests
from unified_ipu.data.schedule import Schedule

FACTS = ("size", "seed", "shuffle", "global_batch_size", "remainder")


def facts_of(schedule: Schedule) -> Dict[str, Any]:
    """All that the samples of a position depend on, beside the epoch."""
    return {
        "size": schedule.size,
        "seed": schedule.seed,
        "shuffle": schedule.shuffle,
        "global_batch_size": schedule.batch.global_batch_size,
        "remainder": schedule.batch.remainder,
    }


def differences(schedule: Schedule, state: Mapping[str, Any]) -> List[str]:
    """What would give other samples at the saved position, in words; empty if nothing."""
    now = facts_of(schedule)
    return [
        f"{name} is {now[name]}, saved with {state.get(name)}"
        for name in FACTS
        if now[name] != state.get(name)
    ]


def delivered_state(communicator: Communicator, cursor: Cursor) -> Dict[str, Any]:
    """Add up what all ranks were given in the pass of ``cursor``; collective."""
    lacking: Counter[int] = Counter()
    extra: Counter[int] = Counter()
    delivered, num_extra, digest = 0, 0, (0, 0)
    for message in communicator.all_gather_value(cursor.receipts.to_message()):
        lacking.update(dict(message["lacking"]))
        extra.update(dict(message["extra"]))
        delivered += message["delivered"]
        num_extra += message["num_extra"]
        first, second = (int(word, 16) for word in message["digest"])
        digest = add_digests(digest, (first, second))
    return {
        "start": cursor.start,
        "delivered": delivered,
        "num_extra": num_extra,
        "lacking": sorted(lacking.items()),
        "extra": sorted(extra.items()),
        "digest": [f"{word:016x}" for word in digest],
    }


def cursor_of(state: Mapping[str, Any], *, is_first: bool) -> Cursor:
    """A pass that was broken off at the saved position; one rank carries on its tally."""
    saved = state["delivered"]
    cursor = Cursor((), int(saved["start"]), int(state["epoch"]))
    cursor.end = int(state["position"])
    if is_first:
        cursor.receipts = Receipts.from_message(saved)
    return cursor

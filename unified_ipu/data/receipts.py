"""What one rank was given in one pass: a count, a hash, and the ids that were not as expected.

The hash is the sum of a 64-bit mix of each id under two keys: it does not depend on the order or
on who received what, and needs no memory per sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from unified_ipu.data.mixing import derive_keys, mix64
from unified_ipu.data.schedule import Portion

MAX_DEVIATIONS = 1000

_KEYS = derive_keys("ids", purpose=b"ui-certificate", count=2)
_FOLD_ROWS = 8192
_WORD = 1 << 64

Digest = Tuple[int, int]


def digest_of(ids: np.ndarray) -> Digest:
    """Hash of a multiset of ids, ``[n]``: two 64-bit sums."""
    first, second = (int(mix64(ids, key).sum(dtype=np.uint64)) for key in _KEYS)
    return first, second


def digest_of_range(start: int, stop: int) -> Digest:
    """Hash of the ids ``start`` to ``stop``, each once, in constant memory."""
    total = (0, 0)
    for first in range(start, stop, 1 << 16):
        block = np.arange(first, min(first + (1 << 16), stop), dtype=np.int64)
        total = add_digests(total, digest_of(block))
    return total


def add_digests(left: Digest, right: Digest) -> Digest:
    """Hash of the union of two multisets."""
    return (left[0] + right[0]) % _WORD, (left[1] + right[1]) % _WORD


def subtract_digests(left: Digest, right: Digest) -> Digest:
    """Hash of what is left of a multiset without a part of it."""
    return (left[0] - right[0]) % _WORD, (left[1] - right[1]) % _WORD


@dataclass
class Receipts:
    """Tally of one rank over one pass.

    Args:
        delivered: Real rows received.
        lacking: Counts of the ids that were due but not received, the first 1,000.
        extra: Counts of the ids that were received but not due, the first 1,000.
        num_extra: Rows received but not due, those whose ids are not kept included.
    """

    delivered: int = 0
    lacking: Dict[int, int] = field(default_factory=Counter)
    extra: Dict[int, int] = field(default_factory=Counter)
    num_extra: int = 0
    _digest: Digest = (0, 0)
    _waiting: List[np.ndarray] = field(default_factory=list)
    _rows: int = 0

    @property
    def digest(self) -> Digest:
        """Hash of all ids received."""
        if self._waiting:
            self._digest = add_digests(self._digest, digest_of(np.concatenate(self._waiting)))
            self._waiting, self._rows = [], 0
        return self._digest

    def receive(self, portion: Portion, row_ids: np.ndarray) -> None:
        """Count a micro-batch that arrived with ``row_ids`` ``[rows]``, padding included."""
        due, got = portion.row_ids[: portion.real], row_ids[: portion.real]
        if due is not got and not np.array_equal(due, got):
            self._deviate(due, got)
        self._waiting.append(got)
        self._rows += len(got)
        self.delivered += len(got)
        if self._rows >= _FOLD_ROWS:
            _ = self.digest

    def skip(self, portion: Portion) -> None:
        """Count a micro-batch that was due but never asked for."""
        self._deviate(portion.row_ids[: portion.real], np.empty(0, dtype=np.int64))

    def to_message(self) -> Dict[str, Any]:
        """All of it as JSON values, to be added up over the ranks."""
        return {
            "delivered": self.delivered,
            "digest": [f"{word:016x}" for word in self.digest],
            "lacking": sorted(self.lacking.items()),
            "extra": sorted(self.extra.items()),
            "num_extra": self.num_extra,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Receipts:
        """Go on from what ``to_message`` said."""
        first, second = (int(word, 16) for word in message["digest"])
        return cls(
            delivered=int(message["delivered"]),
            lacking=Counter({int(index): int(count) for index, count in message["lacking"]}),
            extra=Counter({int(index): int(count) for index, count in message["extra"]}),
            num_extra=int(message["num_extra"]),
            _digest=(first, second),
        )

    def _deviate(self, due: np.ndarray, got: np.ndarray) -> None:
        lacking = Counter(due.tolist())
        extra = Counter(got.tolist())
        lacking, extra = lacking - extra, extra - lacking
        self.num_extra += sum(extra.values())
        for kept, new in ((self.lacking, lacking), (self.extra, extra)):
            for index, count in new.items():
                if index in kept or len(kept) < MAX_DEVIATIONS:
                    kept[index] = kept.get(index, 0) + count

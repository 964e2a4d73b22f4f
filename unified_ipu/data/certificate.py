"""The proof that an epoch used each sample once, or the list of those it did not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence, Tuple

from unified_ipu.data.receipts import MAX_DEVIATIONS, Digest, add_digests

_SHOWN = 10


@dataclass(frozen=True)
class Certificate:
    """What all ranks together were given in one pass; the same on every rank.

    Args:
        size: Samples of the source.
        expected: Samples that were due: of the whole epoch, or of what was handed out so far.
        delivered: Real rows that arrived, duplicates included.
        duplicates: Rows that arrived though their sample was not due (again).
        missing: Samples that were due and did not arrive.
        dropped: Samples left out because the plan says so.
        padded: Rows of weight 0 that the plan asked for.
        deviations: Ids of duplicates and missing, sorted, the first 1,000.
        digest: Hash of the ids, independent of their order, in hexadecimal.
        is_finished: Whether the pass came to its end.
        start: First position that counts; not 0 after a restart inside of an epoch.
        adds_up: Whether the hash of the ids is that of the samples that were due.
    """

    size: int
    expected: int
    delivered: int
    duplicates: int
    missing: int
    dropped: int
    padded: int
    deviations: Tuple[int, ...]
    digest: str
    is_finished: bool
    start: int = 0
    adds_up: bool = True

    @property
    def ok(self) -> bool:
        """Whether the pass is finished and each sample that was due arrived once."""
        return self.is_finished and self.is_exact

    @property
    def is_exact(self) -> bool:
        """Whether each sample that was due until now arrived once, and no other."""
        return self.duplicates == 0 and self.missing == 0 and self.adds_up

    def __str__(self) -> str:
        distinct = self.delivered - self.duplicates
        parts = [f"{distinct} of {self.size} samples"]
        if self.is_exact:
            parts.append("each once")
        else:
            parts += [f"{self.missing} missing", f"{self.duplicates} duplicated"]
            shown = ", ".join(map(str, self.deviations[:_SHOWN]))
            more = ", ..." if len(self.deviations) > _SHOWN else ""
            if shown:
                parts.append(f"ids {shown}{more}")
            elif not self.adds_up:
                parts.append("the ids do not add up to those that were due")
        if self.dropped:
            parts.append(f"{self.dropped} dropped")
        if self.padded:
            parts.append(f"{self.padded} rows of padding")
        if self.start:
            parts.append(f"counted from position {self.start} on")
        if not self.is_finished:
            parts.append("not finished")
        return ", ".join(parts)


def add_up(
    messages: Sequence[Mapping[str, Any]], *, due: Optional[Digest], facts: Mapping[str, Any]
) -> Certificate:
    """Make the certificate from the receipts of all ranks.

    Args:
        messages: ``Receipts.to_message`` of every rank.
        due: Hash of the samples that were due, from their positions alone; None if not known.
        facts: The fields of the certificate that are known beforehand.

    Returns:
        The certificate.
    """
    lacking: Counter[int] = Counter()
    extra: Counter[int] = Counter()
    digest: Digest = (0, 0)
    for message in messages:
        lacking.update(dict(message["lacking"]))
        extra.update(dict(message["extra"]))
        first, second = (int(word, 16) for word in message["digest"])
        digest = add_digests(digest, (first, second))
    # What one rank lacks and another one has too much of was delivered once, in the wrong place.
    misplaced = lacking & extra
    delivered = sum(message["delivered"] for message in messages)
    duplicates = sum(message["num_extra"] for message in messages) - sum(misplaced.values())
    lacking, extra = lacking - misplaced, extra - misplaced
    return Certificate(
        delivered=delivered,
        duplicates=duplicates,
        missing=facts["expected"] - delivered + duplicates,
        deviations=tuple(sorted({*lacking, *extra})[:MAX_DEVIATIONS]),
        digest="".join(f"{word:016x}" for word in digest),
        adds_up=due is None or digest == due,
        **facts,
    )

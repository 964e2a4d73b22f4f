"""What a collective is, in words and as a number: ranks compare it before they exchange data."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Dict, List, NamedTuple, Sequence

TEXT_BYTES = 254


class Signature(NamedTuple):
    """One collective as one rank means it.

    Args:
        text: Operation, dtype, shape, name and whatever else must agree.
        digest: 64 bits of it: what is compared.
        data: The text as others read it, cut to ``TEXT_BYTES``.
        problem: Why this rank cannot carry it out, or "": then all ranks raise.
    """

    text: str
    digest: int
    data: bytes
    problem: str = ""


@lru_cache(maxsize=4096)
def build_signature(text: str, name: str = "", problem: str = "") -> Signature:
    """Signature of ``text``, called ``name`` by the user; a ``problem`` makes all ranks raise."""
    full = f"{text} {name!r}" if name else text
    if problem:
        full = f"{full} (refused: {problem})"
    data = full.encode("utf-8", "replace")
    digest = int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
    return Signature(full, digest, data[:TEXT_BYTES], problem)


def describe_mismatch(number: int, texts: Dict[int, str]) -> str:
    """Message for ranks that entered different collectives.

    Args:
        number: Which collective of the communicator, from 1.
        texts: What each rank entered, by rank.
    """
    by_text: Dict[str, List[int]] = {}
    for rank in sorted(texts):
        by_text.setdefault(texts[rank], []).append(rank)
    parts = "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in by_text.items())
    return (
        f"the ranks disagree about collective {number}: {parts}. "
        "Call the same collective with the same dtype, shape and name on every rank"
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0, 2``."""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(str(rank) for rank in ranks)}"

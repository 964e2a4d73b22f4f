"""Keyed 64-bit hashes: the only randomness of the data room, the same on every numpy.

Keys come from blake2b, so any Python integer is a seed and no numpy generator is involved. Array
arithmetic is all uint64 and wraps silently; a product of two scalars would warn, so constants are
applied to arrays only.
"""

from __future__ import annotations

import hashlib
from typing import Tuple

import numpy as np

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)


def derive_keys(text: str, *, purpose: bytes, count: int) -> Tuple[np.uint64, ...]:
    """Return ``count`` keys (at most 8) that depend on ``text`` and ``purpose`` only.

    Source: blake2b, RFC 7693; ``purpose`` is its personalisation, at most 16 bytes.
    """
    digest = hashlib.blake2b(text.encode(), person=purpose, digest_size=8 * count).digest()
    return tuple(np.frombuffer(digest, dtype="<u8").astype(np.uint64))


def mix64(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """Hash integers ``[n]`` to uint64 ``[n]``; a bijection of 64-bit words for each key.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014) behind an added key.
    """
    mixed = values.astype(np.uint64)
    mixed += key
    mixed ^= mixed >> _S30
    mixed *= _FIRST
    mixed ^= mixed >> _S27
    mixed *= _SECOND
    mixed ^= mixed >> _S31
    return mixed


def sample_seeds(seed: int, epoch: int, ids: np.ndarray) -> np.ndarray:
    """Seeds of single samples, int64 ``[n, 2]``: a function of (seed, epoch, id) only.

    Made for ``tf.random.stateless_*``, which take two integers.

    Args:
        seed: The plan's seed.
        epoch: Of the loader.
        ids: Sample ids, ``[n]``.
    """
    keys = derive_keys(f"{seed}|{epoch}", purpose=b"ui-sample", count=2)
    seeds = np.empty((len(ids), 2), dtype=np.uint64)
    for column, key in enumerate(keys):
        seeds[:, column] = mix64(ids, key)
    return seeds.view(np.int64)

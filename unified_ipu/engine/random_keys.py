"""Keys of the random numbers in forward: a function of (seed, program, update, micro-batch)."""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1

TRAINING = 0
EVALUATION = 1


def micro_batch_key(seed: int, *, program: int, kind: int, update: int, micro_batch: int) -> int:
    """Return the key of one micro-batch's random numbers, in [0, 2**63).

    Neither the rank nor the number of replicas enters, so the masks do not depend on the world.

    Args:
        seed: The plan's, any non-negative integer.
        program: Index of the program in its session.
        kind: ``TRAINING`` or ``EVALUATION``, so that the two never share masks.
        update: Number of the update in the life of the program; 0 in evaluation.
        micro_batch: ``m`` in its update, or k in evaluation.

    Returns:
        63 bits, which every framework's generator takes as a seed.

    Source: a chain of the SplitMix64 finaliser (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014); distinctness is held by ``test_random_keys.py``.
    """
    state = _beginning(seed, program, kind)
    for part in (update, micro_batch):
        state = _mix((state + part + 0x9E3779B97F4A7C15) & _MASK)
    return state >> 1


@lru_cache(maxsize=64)
def _beginning(seed: int, program: int, kind: int) -> int:
    """State after what is the same for all micro-batches of a program."""
    state = _mix(seed & _MASK) ^ _mix(~(seed >> 64) & _MASK)
    for part in (program, kind):
        state = _mix((state + part + 0x9E3779B97F4A7C15) & _MASK)
    return state


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)

"""How many stages and IPUs a placed model takes, and the least counts of a pipeline."""

from __future__ import annotations

from typing import Sequence


def forward_stages(ipus: Sequence[int]) -> int:
    """F, counted as the changes of IPU along the blocks in the order of execution, plus one."""
    return 1 + sum(1 for one, other in zip(ipus, ipus[1:]) if one != other)


def training_stages(forward: int) -> int:
    """Stages of the training pipeline: the last forward stage is one with its backward."""
    return 2 * forward - 1


def power_of_two(ipus: int) -> int:
    """The least power of two that is not below ``ipus``."""
    return 1 << max(0, ipus - 1).bit_length()

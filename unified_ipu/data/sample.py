"""What a pipeline function is given for each sample."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sample(NamedTuple):
    """Which sample to make, and the only randomness it may use.

    Args:
        index: Sample id, a scalar of the pipeline's framework; ``[b]`` with ``batched=True``.
        seed: Two integers ``[2]`` from (seed, epoch, index), for stateless random functions;
            ``[b, 2]`` with ``batched=True``.
    """

    index: Any
    seed: Any

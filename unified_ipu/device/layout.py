"""Where the rows of one host call go: device iterations, accumulation steps, replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional

from unified_ipu.errors import ConfigError


@dataclass(frozen=True)
class Position:
    """One micro-batch of a call.

    Args:
        iteration: Update of the call (training) or execution of the model (inference).
        step: Accumulation step inside the update.
        replica: Of this process, from 0.
        slice: Which micro-batch of the host's rows it reads.
    """

    iteration: int
    step: int
    replica: int
    slice: int


@dataclass(frozen=True)
class CallShape:
    """The static counts of a device program.

    Slices are dealt with the replica fastest, then the accumulation step, then the iteration:
    ``(iteration * accumulation + step) * streams + stream``. PopTorch and PopART split the rows of
    a host call so, IPU Keras the batches of its infeed. An API with another order ignores
    ``Position.slice`` and picks its own.

    Args:
        iterations: D, updates or executions of one call.
        accumulation: A, micro-batches of a replica behind an update; 1 in inference.
        replicas: R, copies of the model in this process.
        group_size: So many neighbouring replicas read the same slice.

    Raises:
        ConfigError: If a count is below 1 or the groups do not divide the replicas.
    """

    iterations: int = 1
    accumulation: int = 1
    replicas: int = 1
    group_size: int = 1

    def __post_init__(self) -> None:
        for name in ("iterations", "accumulation", "replicas", "group_size"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigError(f"{name} of a device call must be at least 1, got {count!r}")
        if self.replicas % self.group_size:
            raise ConfigError(
                f"{self.replicas} replicas do not divide into groups of {self.group_size}; choose "
                f"a divisor"
            )

    @property
    def streams(self) -> int:
        """Replicas that read rows of their own."""
        return self.replicas // self.group_size

    @property
    def slices(self) -> int:
        """Micro-batches in the rows of one host call: D x A x streams."""
        return self.iterations * self.accumulation * self.streams

    def micro_rows(self, rows: int) -> Optional[int]:
        """Rows of one micro-batch, or None if ``rows`` do not divide evenly."""
        return None if rows % self.slices else rows // self.slices

    def update(self, iteration: int) -> Iterator[Position]:
        """The micro-batches of one iteration, in the order in which they are fed."""
        for step in range(self.accumulation):
            for replica in range(self.replicas):
                first = (iteration * self.accumulation + step) * self.streams
                yield Position(iteration, step, replica, first + replica // self.group_size)

"""What a call gives back to the host, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

from unified_ipu.device.layout import CallShape, Position
from unified_ipu.errors import ConfigError

MODES = ("all", "final", "sum", "every_n")


@dataclass(frozen=True)
class OutputSelection:
    """Which micro-batches return a value.

    Args:
        shape: Of the call.
        mode: ``"all"``; ``"final"``: the last micro-batch of each replica; ``"sum"``: of each
            replica over the call, never divided; ``"every_n"``: all micro-batches of every
            ``period``-th iteration.
        period: Of ``"every_n"``.

    Raises:
        ConfigError: If the mode is unknown, or the period does not divide the iterations.
    """

    shape: CallShape
    mode: str = "all"
    period: int = 1

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"output mode must be one of {MODES}, got {self.mode!r}")
        if self.mode == "every_n" and (self.period < 1 or self.shape.iterations % self.period):
            raise ConfigError(
                f"every {self.period} iterations do not divide {self.shape.iterations} iterations "
                "of a call"
            )

    @property
    def axes(self) -> Tuple[int, ...]:
        """Axes that the returned blocks are laid out in, slowest first."""
        shape = self.shape
        if self.mode in {"final", "sum"}:
            return (shape.replicas,)
        kept = shape.iterations // (self.period if self.mode == "every_n" else 1)
        return (kept, shape.accumulation, shape.replicas)

    @property
    def blocks(self) -> int:
        """Values that come back for one output of the model."""
        count = 1
        for axis in self.axes:
            count *= axis
        return count

    def block(self, position: Position) -> int:
        """The block that a micro-batch goes to (or is added to); -1 if it is not returned."""
        shape = self.shape
        if self.mode == "sum":
            return position.replica
        if self.mode == "final":
            is_last = (
                position.iteration == shape.iterations - 1
                and position.step == shape.accumulation - 1
            )
            return position.replica if is_last else -1
        iteration = position.iteration
        if self.mode == "every_n":
            if (iteration + 1) % self.period:
                return -1
            iteration //= self.period
        return (iteration * shape.accumulation + position.step) * shape.replicas + position.replica


class Outputs:
    """Gathers the values of one call.

    Args:
        selection: What is returned.
        add: The sum of two values, for the modes that sum.
    """

    def __init__(self, selection: OutputSelection, add: Callable[[Any, Any], Any]) -> None:
        self.selection = selection
        self._add = add
        self._blocks: List[Dict[int, Any]] = []

    def take(self, position: Position, values: Sequence[Any]) -> None:
        """Keep what the model returned for one micro-batch, or drop it.

        Args:
            position: Of the micro-batch.
            values: As many for every micro-batch.

        Raises:
            ConfigError: If their number changed.
        """
        if not self._blocks:
            self._blocks = [{} for _ in values]
        if len(values) != len(self._blocks):
            raise ConfigError(
                f"the model returned {len(values)} values for a micro-batch and "
                f"{len(self._blocks)} before; a device program returns the same ones each time"
            )
        block = self.selection.block(position)
        if block < 0:
            return
        for kept, value in zip(self._blocks, values):
            kept[block] = self._add(kept[block], value) if block in kept else value

    def blocks(self) -> List[List[Any]]:
        """For each output of the model its blocks, the last of ``axes`` fastest."""
        return [[kept[i] for i in range(self.selection.blocks)] for kept in self._blocks]

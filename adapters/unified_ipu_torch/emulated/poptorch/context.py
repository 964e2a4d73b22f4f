"""Whether a model runs on the (emulated) device at the moment, and what that run collects."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, List, Optional

import torch


@dataclass
class Run:
    """One forward pass of a model on the device.

    Args:
        training: Whether the program trains.
        is_capture: Whether this is the pass that compiles, which checks and keeps nothing.
        on_loss: Told of every loss with the tensor that the operator returned.
        losses: All of them, in order.
        placement: Places the blocks while it captures.
        inputs: Of the model, while it captures.
        overlapped_outputs: What was said to be an output whose transfer overlaps.
        overlaps: How transfers were asked to overlap.
    """

    training: bool
    is_capture: bool
    on_loss: Optional[Callable[[torch.Tensor], None]] = None
    losses: List[torch.Tensor] = field(default_factory=list)
    placement: Any = None
    inputs: List[torch.Tensor] = field(default_factory=list)
    overlaps: List[Any] = field(default_factory=list)
    overlapped_outputs: List[torch.Tensor] = field(default_factory=list)

    def add_loss(self, loss: torch.Tensor) -> None:
        """Keep a loss."""
        self.losses.append(loss)
        if self.on_loss is not None:
            self.on_loss(loss)


class _Running(threading.local):
    """The pass of a thread."""

    run: Optional[Run] = None


_running = _Running()


def current_run() -> Optional[Run]:
    """The pass that runs now, or None on the host."""
    return _running.run


def isRunningOnIpu() -> bool:
    """Whether the code runs as a part of a device program and not on the host."""
    return _running.run is not None


@contextlib.contextmanager
def running(run: Run) -> Iterator[Run]:
    """The code inside is on the device."""
    outer, _running.run = _running.run, run
    try:
        yield run
    finally:
        _running.run = outer

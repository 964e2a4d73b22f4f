"""When each input and output of the last call passed between host and device.

Times are the host's; the structure is PopTorch's: event, then tensor, then occurrence.

Source: PopTorch 3.4, ``python/_poplar_executor.py``.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Sequence, Tuple

EVENTS = ("input", "input_complete", "output", "output_complete")
Latency = Tuple[float, float, float]
Pick = Callable[[Sequence[float]], float]


class Timings:
    """Collects the times of one call."""

    def __init__(self) -> None:
        self._inputs: List[Tuple[float, float]] = []
        self._outputs: Dict[int, Tuple[float, float]] = {}
        self._counts = (0, 0)

    def received(self, begin: float) -> None:
        """The inputs of a micro-batch have arrived.

        Args:
            begin: When they were asked for.
        """
        self._inputs.append((begin, time.perf_counter()))

    def returned(self, block: int, begin: float) -> None:
        """The outputs of a micro-batch were sent; -1 if they are not."""
        if block >= 0:
            self._outputs[block] = (begin, time.perf_counter())

    def finish(self, inputs: int, outputs: int) -> None:
        """The call is over; so many tensors went in and out of each micro-batch."""
        self._counts = (inputs, outputs)

    def counters(self) -> Dict[str, List[List[float]]]:
        """Times in seconds by event, tensor and occurrence."""
        sent = [self._outputs[block] for block in sorted(self._outputs)]
        found = {}
        for event, (begins, count) in zip(
            EVENTS, ((self._inputs, 0), (self._inputs, 0), (sent, 1), (sent, 1))
        ):
            side = 1 if event.endswith("complete") else 0
            times = [pair[side] for pair in begins]
            found[event] = [list(times) for _ in range(self._counts[count])] or [[]]
        return found


def latency(
    counters: Dict[str, List[List[float]]], start: Tuple[str, Pick], end: Tuple[str, Pick]
) -> Latency:
    """The time between two events.

    Args:
        counters: Of ``Timings``.
        start: An event, and which of several tensors' times counts.
        end: Likewise.

    Returns:
        Minimum, maximum and mean over the occurrences, in seconds.
    """
    starts = [start[1](times) for times in zip(*counters[start[0]])]
    ends = [end[1](times) for times in zip(*counters[end[0]])]
    if not ends or not starts:
        return 0.0, 0.0, 0.0
    # More goes in than comes out: an output answers a group of inputs.
    group = max(1, len(starts) // len(ends))
    durations = [stop - min(starts[i * group : (i + 1) * group]) for i, stop in enumerate(ends)]
    return min(durations), max(durations), sum(durations) / len(durations)

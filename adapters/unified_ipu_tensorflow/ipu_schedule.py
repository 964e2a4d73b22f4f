"""How many micro-batches a pipeline of TensorFlow for IPU has in flight: its overlap length.

The compiler wants the number of micro-batches to be a multiple of it, in training and inference.

Source: Graphcore's TensorFlow of SDK 3.4, ``compiler/plugin/poplar/driver/visitors/``,
``pipeline_visitor.cc`` and ``pipeline_visitor_utils.h``, as a rule.
"""

from __future__ import annotations

from typing import Dict, List, Sequence

SCHEDULES: Dict[str, str] = {"gpipe": "Grouped", "1f1b": "Interleaved"}
"""The plan's schedules by the names of ``PipelineSchedule``."""


def overlap_length(schedule: str, devices: Sequence[int], *, training: bool) -> int:
    """Count the micro-batches that a pipeline works on at once.

    Args:
        schedule: ``"Grouped"`` or ``"Interleaved"``.
        devices: The IPU of each forward stage.
        training: Whether the backward stages follow, each on the IPU of its forward stage.

    Returns:
        What ``gradient_accumulation_steps_per_replica`` (training) or ``steps_per_execution``
        (inference) has to be a multiple of.
    """
    order = [*devices, *reversed(devices)] if training else list(devices)
    if schedule == "Grouped":
        return len(order)
    together: List[List[int]] = []
    for start in range(len(order)):
        rotation = order[start:] + order[:start]
        if all(_never_meet(rotation, other) for other in together):
            together.append(rotation)
    return len(together)


def _never_meet(first: Sequence[int], second: Sequence[int]) -> bool:
    return all(one != other for one, other in zip(first, second))

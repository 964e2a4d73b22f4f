"""Evaluation and prediction with static shapes: full micro-batches, as many as a device takes."""

from __future__ import annotations

from itertools import islice
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Device, Metric, MicroBatch, Tree, map_tree
from unified_ipu.engine.device_feed import padded, with_arrays
from unified_ipu.events import PhaseClock


class DeviceInference:
    """Runs groups of micro-batches ahead, and answers for each of them.

    Args:
        device: Of an adapter.
        rows: The plan's micro-batch size; a loader with a larger one of its own raises it.
        clock: Is told the time of computing.
    """

    def __init__(self, device: Device, rows: int, clock: PhaseClock) -> None:
        self._device = device
        self._rows = rows
        self._clock = clock
        self._waiting: List[Tuple[MicroBatch, MicroBatch, Any]] = []

    def in_groups(self, micro_batches: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the micro-batches one by one, each with its result at hand."""
        rest = iter(micro_batches)
        while True:
            group = list(islice(rest, self._device.micro_batches_at_once))
            if not group:
                return
            with self._clock.phase("compute"):
                full, results = self._run(group)
            for micro, complete, result in zip(group, full, results):
                self._waiting = [(micro, complete, result)]
                yield micro
            self._waiting = []

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric]
    ) -> Dict[str, Tuple[float, float]]:
        """As ``Replica.evaluate``."""
        complete, result = self._result_of(micro)
        return self._device.score(complete, result, metrics)

    def predict(self, micro: MicroBatch) -> Tree:
        """As ``Replica.predict``: the rows that were added to fill up are cut off."""
        _, result = self._result_of(micro)
        return map_tree(self._device.outputs(result), self._cut(micro.rows))

    def _result_of(self, micro: MicroBatch) -> Tuple[MicroBatch, Any]:
        for asked, complete, result in self._waiting:
            if asked is micro:
                return complete, result
        full, results = self._run([micro])
        return full[0], results[0]

    def _run(self, group: Sequence[MicroBatch]) -> Tuple[List[MicroBatch], Sequence[Any]]:
        self._rows = max(self._rows, *(micro.rows for micro in group))
        full = [padded(with_arrays(micro), self._rows) for micro in group]
        missing = self._device.micro_batches_at_once - len(full)
        return full, self._device.infer([*full, *full[-1:] * missing])

    def _cut(self, rows: int) -> Any:
        full = self._rows

        def cut(leaf: Optional[Any]) -> Any:
            # Only what has a row for each of the full micro-batch; the caller refuses the rest.
            array = None if leaf is None else np.asarray(leaf)
            has_rows = array is not None and array.ndim > 0 and array.shape[0] == full
            return array[:rows] if has_rows and array is not None else leaf

        return cut

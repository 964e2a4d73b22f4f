"""An update as a device takes it: A x R micro-batches of B rows each, with what they weigh.

What is missing is filled up with rows that are there already and count nothing. Zeros would not
do: a row of zeros may give a loss that is not finite, and 0 times that is no number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Device, DeviceUpdate, MicroBatch, Tree, Update, map_tree
from unified_ipu.device import loss_coefficients
from unified_ipu.errors import ConfigError
from unified_ipu.plan import DeviceBatch


@dataclass(frozen=True)
class Weighed:
    """One update of this process, read and counted, before W over the world is known.

    Args:
        number: Of the update.
        micro_batches: Complete, or none if this process never had a row.
        weights: W of each, float64.
        factors: What the loss of each row, or each micro-batch, is multiplied with in S, float64.
        samples: Rows that are no padding.
        problem: Why it cannot be fed, or empty.
    """

    number: int
    micro_batches: Tuple[MicroBatch, ...]
    weights: Any
    factors: Any
    samples: int
    problem: str = ""

    def update(self, total: float, reduction: str) -> DeviceUpdate:
        """Divide, now that W over the world is ``total``."""
        return DeviceUpdate(
            number=self.number,
            weight=total,
            micro_batches=self.micro_batches,
            coefficients=loss_coefficients(self.factors, reduction=reduction, total=total),
            micro_weights=self.weights,
        )


class DeviceFeed:
    """Completes the updates of one process and lets its device weigh them.

    Args:
        device: Weighs micro-batches.
        batch: What a call takes.
    """

    def __init__(self, device: Device, batch: DeviceBatch) -> None:
        self._device = device
        self._batch = batch
        self._row: Optional[Tree] = None

    def weigh(self, update: Update) -> Weighed:
        """Read an update's micro-batches, fill them up and count them.

        Raises:
            ConfigError: If there are more than a device takes.
        """
        given = [with_arrays(micro) for micro in update.micro_batches]
        needed = self._batch.accumulation * self._batch.local_replicas
        if len(given) > needed:
            raise ConfigError(
                f"update {update.number}: got {len(given)} micro-batches in this process; a device "
                f"takes {self._batch.accumulation} x {self._batch.local_replicas} replicas = "
                f"{needed}: pass larger ones, or raise batch.global_batch_size"
            )
        rows = self._batch.micro_batch_size
        complete = [padded(micro, rows) for micro in given]
        samples = sum(real_rows(micro) for micro in given)
        nothing = np.zeros(0)
        cut = next((micro for micro in complete if 0 < real_rows(micro) < rows), None)
        if cut is not None and not self._device.weighs_rows:
            return Weighed(update.number, (), nothing, nothing, samples, _CUT.format(cut.index))
        measures = [self._measure(micro) for micro in complete]
        counted = [micro for micro, (weight, _) in zip(complete, measures) if weight]
        if counted or self._row is None:
            self._keep_a_row(counted or complete)
        if self._row is None:
            return Weighed(update.number, (), nothing, nothing, samples, _NOTHING)
        # What weighs nothing is not run on hosts; here other rows stand for it.
        tree = counted[0].tree if counted else repeated(self._row, rows)
        for index, (weight, _) in enumerate(measures):
            if not weight:
                complete[index] = _uncounted(complete[index].index, tree, rows)
        missing = needed - len(complete)
        complete += [_uncounted(-1, tree, rows) for _ in range(missing)]
        measures += [self._nothing(rows)] * missing
        return Weighed(
            update.number,
            tuple(complete),
            np.array([weight for weight, _ in measures], np.float64),
            np.array([factors for _, factors in measures], np.float64),
            samples,
        )

    def _keep_a_row(self, micro_batches: Sequence[MicroBatch]) -> None:
        """Of the last update that had some, for one in which this process has none."""
        if micro_batches:
            self._row = map_tree(micro_batches[0].tree, lambda leaf: np.array(leaf[:1]))

    def _measure(self, micro: MicroBatch) -> Tuple[float, Any]:
        if real_rows(micro) == 0:
            return self._nothing(micro.rows)
        found = self._device.measure(micro)
        if not found.weight:
            return self._nothing(micro.rows)
        if not self._device.weighs_rows:
            return float(found.weight), float(found.factors)
        return float(found.weight), np.asarray(found.factors, np.float64).reshape(micro.rows)

    def _nothing(self, rows: int) -> Tuple[float, Any]:
        return 0.0, np.zeros(rows) if self._device.weighs_rows else 0.0


_CUT = (
    "micro-batch {} has rows of padding, but its loss is one number: rows cannot be left out of "
    'it. Use a loss that gives one value a row (loss_reduction="none"), or set batch.remainder = '
    '"drop"'
)
_NOTHING = (
    "this process has no row to feed, and never had one; on a device each feeds whole "
    "micro-batches: pass one with sample weights of 0, or use a loader"
)


def _uncounted(index: int, tree: Tree, rows: int) -> MicroBatch:
    weight, ids = np.zeros(rows, np.float32), np.full(rows, -1, np.int64)
    return MicroBatch(index, tree, rows, weight, ids)


def real_rows(micro: MicroBatch) -> int:
    """Rows that are no padding."""
    if micro.sample_weight is None:
        return micro.rows
    return int(np.count_nonzero(micro.sample_weight))


def padded(micro: MicroBatch, rows: int) -> MicroBatch:
    """Return the micro-batch with ``rows`` rows, the new ones repeating those that are there.

    Raises:
        ConfigError: If it has more rows already.
    """
    if micro.rows == rows:
        return micro
    if micro.rows > rows or micro.rows < 1:
        raise ConfigError(
            f"micro-batch {micro.index} has {micro.rows} rows, a device takes 1 to {rows} (static "
            "shapes: batch.micro_batch_size)"
        )
    more = rows - micro.rows
    weight = np.ones(micro.rows, np.float32)
    if micro.sample_weight is not None:
        weight = np.asarray(micro.sample_weight, np.float32)
    ids = None if micro.ids is None else np.concatenate([micro.ids, np.full(more, -1, np.int64)])
    return replace(
        micro,
        tree=repeated(micro.tree, rows),
        rows=rows,
        sample_weight=np.concatenate([weight, np.zeros(more, np.float32)]),
        ids=ids,
    )


def with_arrays(micro: MicroBatch) -> MicroBatch:
    """Return the micro-batch with numpy leaves; tensors that a user passed are read."""
    return replace(micro, tree=map_tree(micro.tree, np.asarray))


def repeated(tree: Tree, rows: int) -> Tree:
    """Rows of a tree over and over until there are ``rows`` of them."""
    return map_tree(tree, lambda leaf: leaf[np.resize(np.arange(len(leaf)), rows)])

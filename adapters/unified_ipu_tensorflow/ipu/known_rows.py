"""Losses of Keras and of ``ui.losses`` as one value a row, and what rows count on the host.

As on the host W is the units of the rows that count; here it has to be known before forward, so
targets alone may tell what is a unit.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Measure, MicroBatch, split_batch
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_tensorflow.batches import Batch
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.losses import KerasLoss
from unified_ipu_tensorflow.output_losses import OutputLosses
from unified_ipu_tensorflow.scores import given_weight
from unified_ipu_tensorflow.shared_losses import SharedLoss

Weight = Optional[Callable[[Any], Any]]


class Counted:
    """What the forms have in common: a micro-batch's parts on the host."""

    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def parts(self, micro: MicroBatch) -> Tuple[Any, Any, Any]:
        """Targets, which rows count, and the user's sample weights or None, float64.

        Raises:
            ConfigError: If the sample weights are not one a row.
        """
        _, targets, sample_weight = split_batch(micro.tree)
        counted = np.ones(micro.rows, bool)
        if micro.sample_weight is not None:
            counted = np.asarray(micro.sample_weight) != 0
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight, np.float64)
            if sample_weight.size != micro.rows or len(sample_weight) != micro.rows:
                raise ConfigError(
                    f"sample_weight has shape {list(sample_weight.shape)} for {micro.rows} rows; "
                    "a device takes one number a row"
                )
            sample_weight = sample_weight.reshape(-1)
        return targets, counted, sample_weight

    def given(self, micro: MicroBatch) -> Optional[float]:
        """W as the user counts it, or None."""
        if self._weight is None:
            return None
        counted = None
        if micro.sample_weight is not None and not np.asarray(micro.sample_weight).all():
            counted = np.asarray(micro.sample_weight) != 0
        return given_weight(self._weight, Batch(micro.tree, micro.rows, counted, micro.tree))

    def count(
        self, micro: MicroBatch, units: Any, *, is_mean: bool, divides_by_weights: bool = False
    ) -> Measure:
        """As the host's losses count: units without sample weights, rows' factors with them."""
        _, counted, sample_weight = self.parts(micro)
        factors = counted.astype(np.float64)
        weight = float((units * factors).sum())
        if sample_weight is not None:
            factors = factors * sample_weight
            if divides_by_weights:
                weight = float((units * factors).sum())
        given = self.given(micro)
        if given is not None:
            if is_mean and sample_weight is None:
                factors = factors * (given / weight if weight else 0.0)
            weight = given
        return Measure(weight, factors)


class KerasRows(Counted):
    """Losses of Keras: the sum of a row's values, divided by their number where there are several.

    Args:
        losses: One, or one an output.
        weight: The user's, or None.

    Raises:
        CapabilityError: If several losses have units that are not in step with the rows.
    """

    weighs_rows = True

    def __init__(self, losses: OutputLosses, weight: Weight) -> None:
        super().__init__(weight)
        self._losses = losses
        self._units = 1
        self._is_one = len(losses.losses) == 1
        for loss in losses.losses:
            if not self._is_one and (
                loss.ignored_class is not None or not loss.usually_counts_rows
            ):
                raise CapabilityError(
                    NAME,
                    f"loss {loss.name!r} of a model with several counts other units than rows, "
                    "which a device would have to know per micro-batch; leave ignore_class and "
                    "mean_with_sample_weight out",
                )

    def rows(self, outputs: Any, targets: Any, count: int) -> Any:
        """One value a row."""
        total = tf.zeros([count], tf.float32)
        for term in self._losses.terms(outputs, targets, None):
            values, units = _values_of_rows(term.loss, term.outputs, term.targets, count)
            if self._is_one:
                self._units = units
            elif term.loss.reduction != "sum":
                values = values / float(units)
            total = total + tf.cast(values, tf.float32) * term.factor
        return total

    def measure(self, micro: MicroBatch) -> Measure:
        """W and the factors of one micro-batch."""
        if not self._is_one:
            return self.count(micro, np.ones(micro.rows), is_mean=False)
        loss = self._losses.losses[0]
        units = np.full(micro.rows, float(self._units))
        if loss.ignored_class is not None:
            targets = np.asarray(self.parts(micro)[0])
            units = (targets != loss.ignored_class).reshape(micro.rows, -1).sum(1).astype(float)
        return self.count(
            micro,
            units,
            is_mean=loss.reduction == "mean",
            divides_by_weights=not loss.usually_counts_rows,
        )


def _values_of_rows(loss: KerasLoss, outputs: Any, targets: Any, count: int) -> Tuple[Any, int]:
    """The sum of each row's values, and how many a row has.

    Raises:
        CapabilityError: If a mask of the model says what counts, or the loss is one number.
    """
    if getattr(outputs, "_keras_mask", None) is not None:
        raise CapabilityError(
            NAME,
            f"the outputs for loss {loss.name!r} carry a mask of the model, so W needs them; a "
            "device has to know W before: give masked steps a target of ignore_class, or a sample "
            "weight of 0",
        )
    values, mask = loss.values(outputs, targets)
    if values.shape.rank == 0 or values.shape[0] != count:
        raise CapabilityError(
            NAME,
            f"loss {loss.name!r} returned values of shape {list(values.shape)} for {count} rows; a "
            "device is fed one weight a row: return one value or more a row",
        )
    if mask is not None:
        values = tf.where(mask, values, tf.zeros_like(values))
    by_row = tf.reshape(values, [count, -1])
    return tf.reduce_sum(by_row, 1), int(by_row.shape[1])


class SharedRows(Counted):
    """Losses of ``ui.losses``: the sum of a row's values.

    Args:
        loss: In TensorFlow's operations.
        weight: The user's, or None.
    """

    weighs_rows = True

    def __init__(self, loss: SharedLoss, weight: Weight) -> None:
        super().__init__(weight)
        self._loss = loss

    def rows(self, outputs: Any, targets: Any, count: int) -> Any:
        """One value a row."""
        values, _ = self._loss.values(outputs, targets)
        return tf.reduce_sum(tf.reshape(values, [count, -1]), 1)

    def measure(self, micro: MicroBatch) -> Measure:
        """W and the factors of one micro-batch; with sample weights a row is its mean, and 1."""
        targets, counted, sample_weight = self.parts(micro)
        units = self._loss.host_units(targets).reshape(micro.rows, -1)
        is_mean = self._loss.reduction == "mean"
        if sample_weight is None:
            return self.count(micro, units.sum(1), is_mean=is_mean)
        per_row = 1.0 if self._loss.reduction == "sum" else 1.0 / units.shape[1]
        given = self.given(micro)
        weight = float(counted.sum()) if given is None else given
        return Measure(weight, counted * sample_weight * per_row)

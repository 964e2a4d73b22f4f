"""The losses of ``ui.losses`` in TensorFlow's operations, to the formulas that are said there."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import losses
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.losses import Sum, check_sample_weight

_IGNORED = -100  # where none is said

_CLASSES = frozenset({"softmax_cross_entropy", "negative_log_likelihood"})


class SharedLoss:
    """One of ``ui.losses``, as values and what counts among them.

    Args:
        loss: As the user described it.

    Raises:
        ConfigError: If its kind is not known here.
    """

    def __init__(self, loss: losses.OutputLoss) -> None:
        if loss.kind not in _CLASSES and loss.kind not in _ELEMENTS:
            known = ", ".join(sorted([*_CLASSES, *_ELEMENTS]))
            raise ConfigError(f"loss {loss.kind!r} is not known to this adapter, only {known}")
        self.reduction = loss.reduction
        self._loss = loss
        self._has_classes = loss.kind in _CLASSES
        self._ignored = _IGNORED if loss.ignore_index is None else loss.ignore_index

    @property
    def usually_counts_rows(self) -> bool:
        """Whether W is the number of rows for one plain class index a row."""
        return self._has_classes and self._loss.class_weights is None

    def is_empty(self, targets: Any, counted: Optional[Any]) -> bool:
        """Whether the targets alone tell that nothing counts; see ``KerasLoss.is_empty``."""
        if counted is not None and not counted.any():
            return True
        if not self._has_classes or isinstance(targets, (dict, tuple, list)):
            return False
        kept = np.asarray(targets) != self._ignored
        return not (kept if counted is None else kept[counted]).any()

    def sum(
        self,
        outputs: Any,
        targets: Any,
        *,
        rows: int,
        counted: Any = None,
        sample_weight: Any = None,
    ) -> Sum:
        """S and W of a micro-batch.

        With sample weights S is the sum of each row's mean (its sum for ``reduction="sum"``) times
        its weight, and W the number of rows.

        Args:
            outputs: Of the model, all of them.
            targets: ``[rows, ...]``.
            rows: Number of rows, padding included.
            counted: ``[rows]`` bool tensor, or None if all rows count.
            sample_weight: One number a row, or None.

        Raises:
            ConfigError: If outputs, targets and weights do not fit together.
        """
        values, units = self.values(outputs, targets)
        by_row, units = tf.reshape(values, [rows, -1]), tf.reshape(units, [rows, -1])
        if counted is not None:
            # Taken out rather than multiplied with 0, which would keep their NaNs.
            by_row, units = tf.boolean_mask(by_row, counted), tf.boolean_mask(units, counted)
        if sample_weight is None:
            return Sum(tf.reduce_sum(by_row), tf.reduce_sum(tf.cast(units, tf.float64)))
        factors = check_sample_weight(sample_weight, rows)
        if factors.shape.num_elements() != rows:
            raise ConfigError(
                f"sample_weight has shape {list(factors.shape)} for {rows} rows; expected one "
                "number a row"
            )
        factors = tf.cast(tf.reshape(factors, [rows]), by_row.dtype)
        if counted is not None:
            factors = tf.boolean_mask(factors, counted)
        each = tf.reduce_sum(by_row, 1) if self.reduction == "sum" else tf.reduce_mean(by_row, 1)
        return Sum(tf.reduce_sum(each * factors), tf.cast(tf.shape(each)[0], tf.float64))

    def host_units(self, targets: Any) -> Any:
        """What each unit weighs, ``[rows, ...]`` float64, from targets on the host."""
        array = np.asarray(targets)
        if not self._has_classes:
            return np.ones(array.shape)
        kept = array != self._ignored
        units = kept.astype(np.float64)
        if self._loss.class_weights is not None:
            weights = np.asarray(self._loss.class_weights, np.float32).astype(np.float64)
            units *= weights[np.where(kept, array, 0)]
        return units

    def values(self, outputs: Any, targets: Any) -> Tuple[Any, Any]:
        """One value and one weight a unit, both ``[rows, ...]``.

        Raises:
            ConfigError: If outputs and targets do not fit together.
        """
        outputs = self._loss.select(outputs)
        if self._has_classes:
            return self._of_classes(outputs, targets)
        targets = tf.cast(targets, outputs.dtype)
        if outputs.shape != targets.shape:
            raise ConfigError(
                f"{self._loss.kind} got outputs of shape {list(outputs.shape)} and targets of "
                f"shape {list(targets.shape)}; expected the same"
            )
        values = _ELEMENTS[self._loss.kind](outputs, targets, self._loss.delta)
        return values, tf.ones_like(values)

    def _of_classes(self, outputs: Any, targets: Any) -> Tuple[Any, Any]:
        """As ``_values``, for class indices.

        Raises:
            ConfigError: If outputs, targets and class weights do not fit together.
        """
        rank = outputs.shape.rank
        expected = [*outputs.shape[:1], *outputs.shape[2:]] if rank else []
        if rank is None or rank < 2 or list(targets.shape) != expected:  # noqa: PLR2004 classes
            raise ConfigError(
                f"{self._loss.kind} got outputs of shape {list(outputs.shape)} and targets of "
                f"shape {list(targets.shape)}; expected [rows, classes, ...] and [rows, ...]"
            )
        if not targets.dtype.is_integer:
            raise ConfigError(
                f"{self._loss.kind} got targets of {targets.dtype.name}; expected class indices"
            )
        logarithms = tf.transpose(outputs, [0, *range(2, rank), 1])
        if self._loss.kind == "softmax_cross_entropy":
            logarithms = tf.nn.log_softmax(logarithms)
        indices = tf.cast(targets, tf.int64)
        kept = tf.not_equal(indices, tf.constant(self._ignored, tf.int64))
        indices = tf.where(kept, indices, tf.zeros_like(indices))
        picked = tf.gather(logarithms, indices, axis=-1, batch_dims=rank - 1)
        units = tf.cast(kept, logarithms.dtype)
        if self._loss.class_weights is not None:
            if len(self._loss.class_weights) != int(outputs.shape[1]):
                raise ConfigError(
                    f"{self._loss.kind} got {len(self._loss.class_weights)} class weights for "
                    f"{int(outputs.shape[1])} classes"
                )
            weights = tf.constant(self._loss.class_weights, logarithms.dtype)
            units = units * tf.gather(weights, indices)
        return tf.where(kept, -picked * units, tf.zeros_like(picked)), units


def _sigmoid_cross_entropy(outputs: Any, targets: Any, delta: float) -> Any:
    del delta
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=outputs)


def _squared(outputs: Any, targets: Any, delta: float) -> Any:
    del delta
    return tf.math.squared_difference(outputs, targets)


def _absolute(outputs: Any, targets: Any, delta: float) -> Any:
    del delta
    return tf.abs(outputs - targets)


def _huber(outputs: Any, targets: Any, delta: float) -> Any:
    distance = tf.abs(outputs - targets)
    inside = tf.minimum(distance, delta)  # so that neither branch of the gradient overflows
    return 0.5 * inside * inside + delta * (distance - inside)


_ELEMENTS: Dict[str, Callable[[Any, Any, float], Any]] = {
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "mean_squared_error": _squared,
    "mean_absolute_error": _absolute,
    "huber": _huber,
}

"""Keras losses: how they are called, and by what each divides its mean.

Every loss of Keras is values, one a unit, and a reduction over them. The update law needs the pair
(S, W), so the values are taken and Keras' own reduction is left out. The same rule holds for both
generations: what a mask or ``ignore_class`` leaves out is no unit. (Keras 2.6 has no
``ignore_class``, and divides by masked units too.)

Source: Keras 3.15 ``keras/src/losses/loss.py``, Keras 2.6 ``keras/losses.py``; held for every loss
of Keras against Keras' own values by ``test_losses.py``.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import map_tree
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.keras_generation import is_keras, is_keras3, keras_of

UNITS = (
    "the number of values it returns, one a row for outputs [rows, ...], that no mask leaves out"
)
WEIGHTS = "the sum of the sample weights, or without them " + UNITS
KERAS_ORDER = ("y_true", "y_pred")
_REDUCTIONS = {
    "auto": "mean",
    "sum_over_batch_size": "mean",
    "mean": "mean",
    "mean_with_sample_weight": "mean",
    "sum": "sum",
    "none": "none",
}


class Sum(NamedTuple):
    """The pair of L1 of one loss on one micro-batch.

    Args:
        total: S, a scalar in the type of the loss.
        weight: W, a float64 scalar.
    """

    total: Any
    weight: Any


def as_keras_loss(loss: Any, model: Any = None, *, reduction: Optional[str] = None) -> Any:
    """Return the Keras loss behind a string, a function of Keras or one that is written like it.

    Args:
        loss: What ``compile`` was given.
        model: Decides which generation of Keras reads a string.
        reduction: What the user says of a function; None for a mean.

    Returns:
        An instance of ``keras.losses.Loss`` where Keras would make one: from a string, from one of
        its functions, and from a function whose parameters are named ``y_true`` and ``y_pred``.
        Anything else as it is.

    Raises:
        ConfigError: If Keras knows no loss of that name, or it is a class.
    """
    if isinstance(loss, type):
        raise ConfigError(
            f"loss={loss.__name__} is a class; pass an instance of it, {loss.__name__}(...)"
        )
    if isinstance(loss, str):
        try:
            loss = keras_of(model).losses.get(loss)
        except ValueError as error:
            raise ConfigError(f"loss={loss!r}: Keras knows no loss of that name") from error
    if is_loss(loss) or not is_written_for_keras(loss):
        return loss
    return from_function(loss, model, reduction=reduction)


def from_function(function: Any, model: Any = None, *, reduction: Optional[str] = None) -> Any:
    """Return the Keras loss of a function ``(y_true, y_pred)``, as ``model.compile`` makes one."""
    losses: Any = keras_of(model).losses

    class FunctionLoss(losses.Loss):  # type: ignore[misc]  # known only when Keras is imported
        """A mean over the values of a function, and each of its rows on an axis."""

        def call(self, y_true: Any, y_pred: Any) -> Any:
            """The values."""
            return function(*_same_rank(y_true, y_pred))

    name = getattr(function, "__name__", None) or "loss"
    own = reduction if reduction in {"sum", "none"} else "sum_over_batch_size"
    return FunctionLoss(name=name.strip("<>"), reduction=own)


def is_loss(loss: Any) -> bool:
    """Whether it is a loss object of Keras whose reduction is Keras' own."""
    if not is_keras(loss) or not hasattr(loss, "reduction"):
        return False
    base = next((k for k in type(loss).__mro__ if k.__name__ == "Loss"), None)
    return base is not None and type(loss).__call__ is base.__call__


def is_written_for_keras(function: Any) -> bool:
    """Whether the first two parameters are called as Keras calls them."""
    if isinstance(function, type) or is_keras(function) or not callable(function):
        return False
    try:
        names = tuple(inspect.signature(function).parameters)[:2]
    except (TypeError, ValueError):
        return False
    return names == KERAS_ORDER


def denominator(loss: Any) -> Optional[str]:
    """Say what a Keras loss divides its mean by, or None for others."""
    try:
        loss = as_keras_loss(loss)
    except ConfigError:
        return None
    if not is_loss(loss):
        return None
    return WEIGHTS if loss.reduction == "mean_with_sample_weight" else UNITS


def reduction_of(loss: Any) -> Optional[str]:
    """``"mean"``, ``"sum"`` or ``"none"`` of a loss that carries it, else None."""
    if not hasattr(loss, "reduction"):
        return None
    return _REDUCTIONS.get("none" if loss.reduction is None else str(loss.reduction))


class KerasLoss:
    """One loss of Keras, as values and what counts among them.

    Args:
        loss: An instance of ``keras.losses.Loss``; it is called on whole micro-batches.
    """

    def __init__(self, loss: Any) -> None:
        self.reduction = reduction_of(loss)
        self._loss = loss
        self._divides_by_weights = loss.reduction == "mean_with_sample_weight"
        self._ignored = _ignored_class(loss)

    @property
    def name(self) -> str:
        """For messages."""
        return str(self._loss.name)

    @property
    def usually_counts_rows(self) -> bool:
        """Whether W is the number of rows for targets of one unit a row."""
        return not self._divides_by_weights

    def is_empty(self, targets: Any, counted: Optional[Any]) -> bool:
        """Whether the targets alone tell that nothing counts.

        Args:
            targets: As they came from the loader, ``[rows, ...]``.
            counted: ``[rows]`` numpy bool, or None if all rows count.
        """
        if counted is not None and not counted.any():
            return True
        if self._ignored is None or isinstance(targets, (dict, tuple, list)):
            return False
        kept = np.asarray(targets) != self._ignored
        if counted is not None:
            kept = kept[counted]
        return not kept.any()

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

        Args:
            outputs: Of the model, ``y_pred``.
            targets: ``y_true``.
            rows: Number of rows, padding included.
            counted: ``[rows]`` bool tensor, or None if all rows count.
            sample_weight: One number a row, or one a unit, or None.

        Returns:
            For a loss that returns one number: that number times its rows, and the rows.

        Raises:
            ConfigError: If a loss that returns one number should leave out or weigh rows.
        """
        values, mask = self.values(outputs, targets)
        if values.shape.rank == 0 or values.shape[0] != rows:
            check_whole(counted, sample_weight)
            weight = tf.constant(float(rows), tf.float64)
            if self.reduction == "sum":
                return Sum(tf.reduce_sum(values), weight)
            return Sum(tf.reduce_mean(values) * float(rows), weight)
        if counted is not None:
            kept_rows = tf.broadcast_to(_aligned(counted, values), tf.shape(values))
            mask = kept_rows if mask is None else tf.logical_and(mask, kept_rows)
        factors = None
        if sample_weight is not None:
            factors = _aligned(check_sample_weight(sample_weight, rows), values)
            factors = tf.cast(factors, values.dtype)
        if mask is not None:
            # Chosen rather than multiplied with 0, which would keep their NaNs.
            values = tf.where(mask, values, tf.zeros_like(values))
        weight = self._weight(values, mask, factors)
        return Sum(tf.reduce_sum(values if factors is None else values * factors), weight)

    def _weight(self, values: Any, mask: Any, factors: Any) -> Any:
        if factors is not None and self._divides_by_weights:
            factors = tf.cast(factors, tf.float64)
            if mask is not None:
                factors = factors * tf.cast(mask, tf.float64)
            return tf.reduce_sum(factors)
        if mask is not None:
            return tf.reduce_sum(tf.cast(mask, tf.float64))
        return tf.cast(tf.size(values), tf.float64)

    @property
    def ignored_class(self) -> Optional[int]:
        """The target that is no unit, or None."""
        return self._ignored

    def values(self, outputs: Any, targets: Any) -> Tuple[Any, Any]:
        """Values of the loss, and the mask over them or None."""
        masks = [_mask_of(outputs)]
        if is_keras3(self._loss):
            kind = getattr(self._loss, "dtype", None)
            if kind is not None:  # the first releases have no type of their own
                outputs = map_tree(outputs, lambda leaf: tf.cast(leaf, kind))
                targets = map_tree(targets, lambda leaf: tf.cast(leaf, kind))
        else:
            targets, outputs = _same_rank(targets, outputs)  # as a compiled loss of Keras 2 does
        values = self._loss.call(targets, outputs)
        masks.append(_mask_of(values))
        values = tf.convert_to_tensor(values)
        found = None
        for mask in masks:
            if mask is None or values.shape.rank == 0:
                continue
            aligned = tf.broadcast_to(tf.cast(_aligned(mask, values), tf.bool), tf.shape(values))
            found = aligned if found is None else tf.logical_and(found, aligned)
        return values, found


def check_whole(counted: Any, sample_weight: Any) -> None:
    """Refuse what a loss that returns one number cannot do.

    Raises:
        ConfigError: If there is padding or a sample weight.
    """
    if counted is None and sample_weight is None:
        return
    what = "sample weights" if sample_weight is not None else "padding"
    raise ConfigError(
        f"a loss that returns one number cannot leave out or weigh rows, but the batch has {what}; "
        'return one value a row and pass loss_reduction="none"'
    )


def check_sample_weight(sample_weight: Any, rows: int) -> Any:
    """Return the sample weights of a micro-batch.

    Raises:
        ConfigError: If they have no axis of rows.
    """
    shape = getattr(sample_weight, "shape", None)
    if shape is None or not len(shape) or shape[0] != rows:
        given = f"shape {list(shape)}" if shape is not None else type(sample_weight).__name__
        raise ConfigError(
            f"sample_weight has {given} for {rows} rows; expected one number a row, or one a unit "
            "of the loss"
        )
    return sample_weight


def _aligned(factors: Any, values: Any) -> Any:
    """Give one number a row, or one a unit, the axes of the values.

    Raises:
        ConfigError: If they do not fit.
    """
    shape = list(factors.shape)
    rank = values.shape.rank
    while len(shape) > rank and shape[-1] == 1:
        factors, shape = tf.squeeze(factors, -1), shape[:-1]
    fits = len(shape) <= rank and all(
        own in {1, other} for own, other in zip(shape, list(values.shape))
    )
    if not fits:
        raise ConfigError(
            f"weights or a mask of shape {shape} do not fit a loss with values of shape "
            f"{list(values.shape)}; expected one number a row, or one a value"
        )
    return tf.reshape(factors, shape + [1] * (rank - len(shape)))


def _mask_of(tensor: Any) -> Any:
    return getattr(tensor, "_keras_mask", None)


def _same_rank(y_true: Any, y_pred: Any) -> Tuple[Any, Any]:
    """Add or take away a last axis of length 1 where it makes the number of axes equal."""
    if not (tf.is_tensor(y_true) and tf.is_tensor(y_pred)):
        return y_true, y_pred
    ranks = len(y_true.shape), len(y_pred.shape)
    if ranks[1] == ranks[0] + 1 and y_pred.shape[-1] == 1:
        if ranks[0] == 1:
            return y_true[:, tf.newaxis], y_pred
        return y_true, tf.squeeze(y_pred, -1)
    if ranks[0] == ranks[1] + 1 and y_true.shape[-1] == 1:
        if ranks[1] == 1:
            return y_true, y_pred[:, tf.newaxis]
        return tf.squeeze(y_true, -1), y_pred
    return y_true, y_pred


def _ignored_class(loss: Any) -> Optional[int]:
    found = getattr(loss, "ignore_class", None)
    keywords = getattr(loss, "_fn_kwargs", None)
    if found is None and isinstance(keywords, dict):
        found = keywords.get("ignore_class")
    return None if found is None else int(found)

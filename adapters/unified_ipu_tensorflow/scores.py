"""What a micro-batch gave as the pair (S, W), and the rules that make it of a plain loss."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Tuple, Union

import tensorflow as tf

from unified_ipu.adapter import Loss, Tree, inputs_of
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import Batch, Feed, call_model, num_rows
from unified_ipu_tensorflow.keras_generation import is_keras
from unified_ipu_tensorflow.losses import check_sample_weight, check_whole


class Score(NamedTuple):
    """What one micro-batch gave: S is ``value * factor``.

    Args:
        value: Scalar tensor that can be differentiated.
        factor: W for losses that divided by it already, else 1; a number or a float64 scalar.
        weight: W, a float64 scalar.
        metrics: ``{name: (sum, weight)}``, numbers or scalars.
        outputs: Of the model, where the loss has them.
    """

    value: Any
    factor: Any
    weight: Any
    metrics: Mapping[str, Tuple[Any, Any]] = {}
    outputs: Any = None


class Weighted:
    """What the forms with ``weight=`` have in common: all but ``objective=``."""

    def __init__(self, weight: Optional[Callable[[Any], Any]]) -> None:
        self._weight = weight

    @property
    def takes_weight(self) -> bool:
        """Whether the user counts W on the host."""
        return self._weight is not None

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W from ``weight=``; else 0.0 if nothing but padding is there."""
        if self._weight is not None:
            return given_weight(self._weight, batch)
        return 0.0 if batch.num_counted == 0 else None

    def outputs(self, model: Any, tree: Tree) -> Any:
        """Outputs of the model for x of the batch, in evaluation mode."""
        return call_model(model, inputs_of(tree), training=False)

    def visit(self, model: Any, feed: Feed) -> None:
        """Call the model without its loss, which says nothing of its variables."""
        self.outputs(model, feed.tree)


def given_weight(function: Callable[[Any], Any], batch: Batch) -> float:
    """W as ``weight=`` counts it, on the host.

    Raises:
        ConfigError: If rows are padding, or it returned no number.
    """
    if batch.counted is not None:
        raise ConfigError(
            "weight= cannot count a micro-batch with padding; leave weight= out and use a loss "
            'with reduction "none", or set batch.remainder to "exact"'
        )
    value = function(batch.tree)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"weight= returned a {type(value).__name__}; expected one number a batch, the number "
            "or weight of what the loss counts"
        ) from error


def with_penalties(model: Any, total: Any, weight: Any) -> Any:
    """Add W times ``model.losses`` to S, so that they keep their weight however it is split."""
    penalty = _penalty(model)
    if penalty is None:
        return total
    return total + tf.cast(weight, total.dtype) * tf.cast(penalty, total.dtype)


def penalised(model: Any, value: Any, factor: Any, weight: Any) -> Any:
    """Add ``model.losses`` to what is still multiplied with ``factor``."""
    if isinstance(factor, float):
        return with_penalties(model, value, weight)
    penalty = _penalty(model)
    return value if penalty is None else value + tf.cast(penalty, value.dtype)


def _penalty(model: Any) -> Optional[Any]:
    # Regularisers, activity regularisers and add_loss of the forward pass just made.
    terms = list(getattr(model, "losses", ())) if is_keras(model) else []
    if not terms:
        return None
    kind = terms[0].dtype
    return tf.add_n([tf.cast(tf.reduce_sum(term), kind) for term in terms])


def reduced(
    value: Any, feed: Feed, sample_weight: Any, reduction: Optional[str], weight: Optional[Any]
) -> Tuple[Any, Union[float, Any], Any]:
    """Value, factor and W of a loss that says no more than its reduction.

    Args:
        value: What the loss returned.
        feed: The micro-batch.
        sample_weight: One number a row, or None.
        reduction: ``"none"``: one value a row; ``"sum"``; else a mean.
        weight: W as the user counts it, or None for the rows that are no padding.

    Raises:
        ConfigError: If the shape of the loss is not that of its reduction.
    """
    rows = num_rows(feed.tree)
    counted: Any = weight
    if counted is None and feed.counted is not None:
        counted = tf.reduce_sum(tf.cast(feed.counted, tf.float64))
    elif counted is None:
        counted = tf.constant(float(rows), tf.float64)
    if reduction == "none":
        return _sum_rows(value, feed.counted, sample_weight, rows), 1.0, counted
    if value.shape.num_elements() != 1:
        raise ConfigError(
            f"the loss has shape {list(value.shape)}, expected a scalar; pass "
            'loss_reduction="none" if it is one value a row'
        )
    check_whole(feed.counted, sample_weight)
    scalar = tf.reshape(value, [])
    return (scalar, 1.0, counted) if reduction == "sum" else (scalar, counted, counted)


def _sum_rows(value: Any, counted: Any, sample_weight: Any, rows: int) -> Any:
    shape = list(value.shape)
    if shape[:1] != [rows] or value.shape.num_elements() != rows:
        raise ConfigError(
            f'loss_reduction="none": the loss has shape {list(value.shape)} for {rows} rows; '
            "return one value a row, or use objective= and count yourself"
        )
    each = tf.reshape(value, [rows])
    if counted is not None:
        # Chosen rather than multiplied with 0, which would keep their NaNs.
        each = tf.where(counted, each, tf.zeros_like(each))
    if sample_weight is not None:
        factors = tf.cast(check_sample_weight(sample_weight, rows), each.dtype)
        if factors.shape.num_elements() != rows:
            raise ConfigError(
                f"sample_weight has shape {list(factors.shape)} for {rows} rows; expected one "
                "number a row"
            )
        each = each * tf.reshape(factors, [rows])
    return tf.reduce_sum(each)


def checked_pair(loss: Any, who: str) -> Tuple[Any, Any, Mapping[str, Tuple[Any, Any]]]:
    """S, W and metrics of a user's ``Loss``.

    Raises:
        ConfigError: If it is none, or has no scalar sum.
    """
    if not isinstance(loss, Loss):
        raise ConfigError(
            f"{who} returned {_described(loss)}; expected "
            "unified_ipu.Loss(sum=..., weight=..., metrics={...})"
        )
    value = loss.sum
    if not isinstance(value, tf.Tensor) or value.shape.num_elements() != 1:
        raise ConfigError(
            f"{who} returned Loss(sum={_described(value)}); expected a scalar tensor: the sum of "
            "the loss over the units that weight counts"
        )
    metrics: Mapping[str, Any] = loss.metrics
    for name, pair in metrics.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # noqa: PLR2004 a pair
            raise ConfigError(
                f"metric {name!r} is a {type(pair).__name__}; expected a pair (sum, weight), so "
                "that it can be added up over micro-batches and ranks"
            )
    counted = tf.stop_gradient(tf.reshape(tf.cast(loss.weight, tf.float64), []))
    return tf.reshape(value, []), counted, metrics


def checked_loss(value: Any, who: str) -> Any:
    """Return what ``who`` returned.

    Raises:
        ConfigError: If it is no tensor.
    """
    if tf.is_tensor(value):
        return value
    raise ConfigError(
        f"{who} returned {_described(value)}; expected a tensor that can be differentiated"
    )


def _described(value: Any) -> str:
    if tf.is_tensor(value):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"

"""Losses that Keras knows nothing of: callables, losses that models return, ``objective=``."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import tensorflow as tf

from unified_ipu.adapter import Loss, Tree, inputs_of, split_batch
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import Batch, Feed, call_model, select_rows
from unified_ipu_tensorflow.scores import (
    Score,
    Weighted,
    checked_loss,
    checked_pair,
    penalised,
    reduced,
    with_penalties,
)
from unified_ipu_tensorflow.training_phase import Phase


class CallableObjective(Weighted):
    """``loss=`` is any callable ``(outputs, targets)``, of which Keras knows nothing."""

    def __init__(
        self, loss: Any, weight: Optional[Callable[[Any], Any]], reduction: Optional[str]
    ) -> None:
        super().__init__(weight)
        self._loss = loss
        self._reduction = reduction

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        return self._weight is None

    def score(self, model: Any, feed: Feed, weight: Optional[Any], *, training: bool) -> Score:
        """Run model and loss.

        Raises:
            ConfigError: If the loss returned neither a tensor nor a pair.
        """
        x, targets, sample_weight = split_batch(feed.tree)
        outputs = call_model(model, x, training=training)
        value = self._loss(outputs, targets)
        if isinstance(value, Loss):
            return self._score_pair(model, feed, outputs, value, weight)
        value = checked_loss(value, "loss=")
        value, factor, counted = reduced(value, feed, sample_weight, self._reduction, weight)
        return Score(penalised(model, value, factor, counted), factor, counted, outputs=outputs)

    def _score_pair(
        self, model: Any, feed: Feed, outputs: Any, pair: Loss, weight: Optional[Any]
    ) -> Score:
        _, targets, sample_weight = split_batch(feed.tree)
        if sample_weight is not None:
            raise ConfigError(
                "a loss that returns a Loss counts by itself and cannot weigh rows, but the batch "
                'has sample weights; return one value a row and pass loss_reduction="none"'
            )
        if weight is not None or self._reduction is not None:
            raise ConfigError(
                "the loss returns a Loss, which carries its own weight; leave weight= and "
                "loss_reduction= out"
            )
        if feed.counted is not None:
            # It cannot tell padding, so it gets the other rows alone.
            pair = self._loss(*select_rows((outputs, targets), feed.counted))
        value, counted, metrics = checked_pair(pair, "loss=")
        return Score(with_penalties(model, value, counted), 1.0, counted, metrics, outputs)


class ModelObjective(Weighted):
    """``loss=None``: the model returns a scalar, ``(loss, outputs)`` or has ``.loss``."""

    def __init__(self, weight: Optional[Callable[[Any], Any]], reduction: Optional[str]) -> None:
        super().__init__(weight)
        self._reduction = reduction

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        return self._weight is None

    def score(self, model: Any, feed: Feed, weight: Optional[Any], *, training: bool) -> Score:
        """Run the model on the whole batch."""
        value, outputs = take_loss(call_model(model, feed.tree, training=training))
        value = checked_loss(value, "loss=None: the model")
        value, factor, counted = reduced(value, feed, None, self._reduction, weight)
        return Score(penalised(model, value, factor, counted), factor, counted, outputs=outputs)

    def outputs(self, model: Any, tree: Tree) -> Any:
        """Outputs of the model without its loss, if it returns them."""
        result = call_model(model, tree, training=False)
        value, outputs = take_loss(result)
        is_loss_alone = tf.is_tensor(value) and value.shape.rank == 0
        return outputs if is_loss_alone and outputs is not None else result


class UserObjective:
    """``objective=``: the user returns the pair."""

    takes_weight = False

    def __init__(self, function: Callable[[Any, Any], Loss], model: Any) -> None:
        self._function = function
        self._phase = Phase(model)

    @property
    def counts_rows(self) -> bool:
        """Nothing is known about it."""
        return False

    def weight_before(self, batch: Batch) -> Optional[float]:
        """Unknown, unless nothing but padding is in the batch.

        Raises:
            ConfigError: If some rows are padding: the objective could not tell them.
        """
        if batch.counted is None:
            return None
        if batch.num_counted == 0:
            return 0.0
        raise ConfigError(
            "objective= gets a batch whole and cannot tell padding from samples; set "
            'batch.remainder to "exact" or "drop", or use loss= with reduction "none"'
        )

    def score(self, model: Any, feed: Feed, weight: Optional[Any], *, training: bool) -> Score:
        """Call the objective and check what it returned.

        Raises:
            ConfigError: If it is no ``Loss`` with a scalar sum.
        """
        del weight
        found = self._phase.run(lambda: self._function(model, feed.tree), training=training)
        value, counted, metrics = checked_pair(found, "objective")
        return Score(value, 1.0, counted, metrics)

    def outputs(self, model: Any, tree: Tree) -> Any:
        """Outputs of the model for x of the batch, in evaluation mode."""
        return call_model(model, inputs_of(tree), training=False)

    def visit(self, model: Any, feed: Feed) -> None:
        """Call the objective, which alone knows how it calls the model."""
        self.score(model, feed, None, training=False)


def take_loss(result: Any) -> Tuple[Any, Any]:
    """Loss and outputs of what a model returned."""
    if hasattr(result, "loss"):
        return result.loss, result
    if isinstance(result, dict) and "loss" in result:
        return result["loss"], result
    if isinstance(result, (tuple, list)) and result:
        rest = result[1:]
        return result[0], rest[0] if len(rest) == 1 else rest
    return result, None

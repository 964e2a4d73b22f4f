"""From a batch to the pair (S, W): ``loss=``, compiled losses and ``objective=`` as one interface.

``score`` is called inside a traced function: it sees tensors, and must not depend on their values
other than by operations of TensorFlow.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Protocol, Union

import tensorflow as tf

from unified_ipu.adapter import Job, Tree, losses, split_batch
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import Batch, Feed, call_model, num_rows
from unified_ipu_tensorflow.losses import as_keras_loss, is_loss, reduction_of
from unified_ipu_tensorflow.output_losses import OutputLosses, compiled_losses
from unified_ipu_tensorflow.scores import Score, Weighted, with_penalties
from unified_ipu_tensorflow.shared_losses import SharedLoss
from unified_ipu_tensorflow.user_objectives import CallableObjective, ModelObjective, UserObjective

_REDUCTIONS = ("mean", "sum", "none")


class Objective(Protocol):
    """The mathematics of a program on one micro-batch."""

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        ...

    @property
    def takes_weight(self) -> bool:
        """Whether ``score`` wants the number of ``weight_before``, as the user counts W."""
        ...

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W where it is known before forward, else None; where it is 0 nothing is run."""
        ...

    def score(self, model: Any, feed: Feed, weight: Optional[Any], *, training: bool) -> Score:
        """Run forward; ``weight`` is a float64 scalar where ``takes_weight``, else None."""
        ...

    def outputs(self, model: Any, tree: Tree) -> Any:
        """Run forward in evaluation mode and return the outputs alone."""
        ...

    def visit(self, model: Any, feed: Feed) -> None:
        """Call all of the model that is trained, so that it makes its variables."""
        ...


def build_objective(job: Job) -> Objective:
    """Choose the form of a job's loss.

    Args:
        job: As ``compile`` was given it.

    Returns:
        The objective.

    Raises:
        ConfigError: If the settings of the loss contradict each other.
    """
    if job.loss_reduction is not None and job.loss_reduction not in _REDUCTIONS:
        raise ConfigError(
            f"loss_reduction={job.loss_reduction!r}: expected one of {', '.join(_REDUCTIONS)}"
        )
    if job.objective is not None:
        return UserObjective(job.objective, job.model)
    check_reduction(job.loss, job.loss_reduction)
    known = known_losses(job)
    if known is not None:
        return KnownObjective(known, job.weight)
    if job.loss is None:
        return ModelObjective(job.weight, job.loss_reduction)
    own = reduction_of(job.loss)
    return CallableObjective(job.loss, job.weight, job.loss_reduction or own)


def check_reduction(loss: Any, asked: Optional[str]) -> None:
    """Refuse a ``loss_reduction=`` that a loss contradicts.

    Raises:
        ConfigError: With the change to make.
    """
    own = reduction_of(loss)
    if asked is not None and own is not None and asked != own:
        wanted = "sum_over_batch_size" if asked == "mean" and is_loss(loss) else asked
        raise ConfigError(
            f"loss_reduction={asked!r}, but the loss has reduction={loss.reduction!r}; leave "
            f"loss_reduction= out, or make the loss with reduction={wanted!r}"
        )


def known_losses(job: Job) -> Optional[Union[OutputLosses, SharedLoss]]:
    """Losses of Keras or of ``ui.losses`` that a job is trained on; None if it has others."""
    if job.loss is None:
        return compiled_losses(job.model)
    if isinstance(job.loss, losses.OutputLoss):
        return SharedLoss(job.loss)
    if isinstance(job.loss, (dict, list, tuple)):
        return OutputLosses(job.loss, None, job.model)
    loss = as_keras_loss(job.loss, job.model, reduction=job.loss_reduction)
    return OutputLosses(loss, None, job.model) if is_loss(loss) else None


class KnownObjective(Weighted):
    """Losses of Keras or of ``ui.losses``: W is what they divide by themselves."""

    def __init__(
        self, known: Union[OutputLosses, SharedLoss], weight: Optional[Callable[[Any], Any]]
    ) -> None:
        super().__init__(weight)
        self._losses = known

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        return self._weight is None and self._losses.usually_counts_rows

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W from ``weight=``; else 0.0 where the targets tell that nothing counts."""
        known = super().weight_before(batch)
        if known is None and self._losses.is_empty(split_batch(batch.host_tree)[1], batch.counted):
            return 0.0
        return known

    def score(self, model: Any, feed: Feed, weight: Optional[Any], *, training: bool) -> Score:
        """Run model and losses."""
        x, targets, sample_weight = split_batch(feed.tree)
        outputs = call_model(model, x, training=training)
        total, counted = self._losses.sum(
            outputs,
            targets,
            rows=num_rows(feed.tree),
            counted=feed.counted,
            sample_weight=sample_weight,
        )
        if weight is not None:
            if self._losses.reduction == "mean" and sample_weight is None:
                total = tf.math.divide_no_nan(total, tf.cast(counted, total.dtype))
                total = total * tf.cast(weight, total.dtype)
            counted = weight
        return Score(with_penalties(model, total, counted), 1.0, counted, outputs=outputs)

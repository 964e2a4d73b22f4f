"""Losses as a device takes them: one value a row, and what each row counts, known before forward.

On the host a loss is a pair (S, W) of tensors. A device program is fed factors instead, so that
S = sum of factors x value of the row, and W must not need the outputs.
"""

from __future__ import annotations

from typing import Any, Optional, Protocol

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import Job, Loss, Measure, MicroBatch
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.ipu.known_rows import Counted, KerasRows, SharedRows, Weight
from unified_ipu_tensorflow.losses import reduction_of
from unified_ipu_tensorflow.objectives import check_reduction, known_losses
from unified_ipu_tensorflow.scores import checked_loss
from unified_ipu_tensorflow.shared_losses import SharedLoss


class RowLoss(Protocol):
    """A loss on a device."""

    weighs_rows: bool

    def rows(self, outputs: Any, targets: Any, count: int) -> Any:
        """One value a row, ``[count]``; the same one for each if rows have none of their own."""
        ...

    def measure(self, micro: MicroBatch) -> Measure:
        """W and the factors of one micro-batch, on the host; ``rows`` was traced before."""
        ...


def build_row_loss(job: Job) -> RowLoss:
    """Choose the form of a job's loss.

    Args:
        job: As ``compile`` was given it.

    Raises:
        CapabilityError: If a device cannot be fed it.
        ConfigError: If the settings of the loss contradict each other.
    """
    if job.objective is not None:
        raise CapabilityError(
            NAME,
            "IPU Keras trains a model and a loss and takes no objective=; pass loss=, a function "
            '(outputs, targets) with loss_reduction="none", or train on a host target',
        )
    check_reduction(job.loss, job.loss_reduction)
    known = known_losses(job)
    if isinstance(known, SharedLoss):
        return SharedRows(known, job.weight)
    if known is not None:
        return KerasRows(known, job.weight)
    if job.loss is None:
        raise CapabilityError(
            NAME,
            "a model that returns its loss has no place in IPU Keras; pass loss= to compile and "
            "let the model return its outputs",
        )
    reduction = job.loss_reduction or reduction_of(job.loss)
    if reduction == "none":
        return CallableRows(job.loss, job.weight)
    return WholeLoss(job.loss, job.weight, reduction)


class CallableRows(Counted):
    """Any callable that returns one value a row.

    Args:
        loss: ``(outputs, targets)``.
        weight: The user's, or None.
    """

    weighs_rows = True

    def __init__(self, loss: Any, weight: Weight) -> None:
        super().__init__(weight)
        self._loss = loss

    def rows(self, outputs: Any, targets: Any, count: int) -> Any:
        """One value a row.

        Raises:
            ConfigError: If there are more or fewer.
        """
        value = _checked(self._loss(outputs, targets))
        if list(value.shape)[:1] != [count] or value.shape.num_elements() != count:
            raise ConfigError(
                f'loss_reduction="none": the loss has shape {list(value.shape)} for {count} rows; '
                "return one value a row"
            )
        return tf.reshape(value, [count])

    def measure(self, micro: MicroBatch) -> Measure:
        """W and the factors of one micro-batch."""
        return self.count(micro, np.ones(micro.rows), is_mean=False)


class WholeLoss(Counted):
    """Any callable that returns one number: a mean, or a sum.

    Args:
        loss: ``(outputs, targets)``.
        weight: The user's, or None.
        reduction: ``"sum"``, else a mean.
    """

    weighs_rows = False

    def __init__(self, loss: Any, weight: Weight, reduction: Optional[str]) -> None:
        super().__init__(weight)
        self._loss = loss
        self._is_sum = reduction == "sum"

    def rows(self, outputs: Any, targets: Any, count: int) -> Any:
        """The number in each row: its factor is shared out to them.

        Raises:
            ConfigError: If it is more than one number.
        """
        value = _checked(self._loss(outputs, targets))
        if value.shape.num_elements() != 1:
            raise ConfigError(
                f"the loss has shape {list(value.shape)}, expected a scalar; pass "
                'loss_reduction="none" if it is one value a row'
            )
        return tf.fill([count], tf.reshape(value, []))

    def measure(self, micro: MicroBatch) -> Measure:
        """W and the factor of one micro-batch.

        Raises:
            ConfigError: If the batch has sample weights.
        """
        _, _, sample_weight = self.parts(micro)
        if sample_weight is not None:
            raise ConfigError(
                "a loss that returns one number cannot weigh rows, but the batch has sample "
                'weights; return one value a row and pass loss_reduction="none"'
            )
        given = self.given(micro)
        weight = float(micro.rows) if given is None else given
        return Measure(weight, 1.0 if self._is_sum else weight)


def _checked(value: Any) -> Any:
    if isinstance(value, Loss):
        raise CapabilityError(
            NAME,
            "the loss returns a Loss, whose weight needs the outputs; a device has to know W "
            'before: return one value a row, pass loss_reduction="none" and weight=',
        )
    return checked_loss(value, "loss=")

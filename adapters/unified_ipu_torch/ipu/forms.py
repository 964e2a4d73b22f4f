"""What a loss is on a device: what it weighs before forward, and what forward gives.

S is the sum of factors times the values of the loss. A loss of rows gives one value a row, so that
rows can be padding; any other gives one number a micro-batch.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Protocol, Tuple, Union

import numpy as np
import torch

from unified_ipu.adapter import Job, Loss, Measure, Tree, split_batch
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_torch.batches import Batch, call_model
from unified_ipu_torch.errors import NAME
from unified_ipu_torch.objectives import (
    KnownObjective,
    ModelObjective,
    Objective,
    OpaqueObjective,
    UserObjective,
    given_weight,
    take_loss,
)


class Values(NamedTuple):
    """What forward gives on a device.

    Args:
        loss: ``[rows]``, or a scalar.
        pairs: ``(name, sum, weight)`` of each metric; the weight of the loss is under no name.
    """

    loss: torch.Tensor
    pairs: Tuple[Tuple[str, Any, Any], ...] = ()


class Form(Protocol):
    """A loss as a device computes it."""

    weighs_rows: bool
    needs_shapes: bool
    """Whether W needs the shape of the model's outputs: ``learn`` is called before ``measure``."""

    def learn(self, outputs: Any, batch: Batch) -> None:
        """Look at outputs for a batch once; shapes are static."""
        ...

    def measure(self, batch: Batch) -> Measure:
        """W and factors of a micro-batch."""
        ...

    def forward(self, model: Any, tree: Tree) -> Values:
        """Run model and loss."""
        ...


def form_of(objective: Objective, job: Job) -> Form:
    """Choose the form of an objective.

    Raises:
        CapabilityError: If its weight is known after forward only.
    """
    if isinstance(objective, KnownObjective):
        return KnownForm(objective)
    if isinstance(objective, UserObjective):
        if job.weight is None:
            raise CapabilityError(
                NAME,
                "an objective gives its weight after forward, but a device divides before; pass "
                "weight= to compile, which counts the same from the batch alone, or use loss=",
            )
        return ObjectiveForm(objective, job.weight)
    if isinstance(objective, (OpaqueObjective, ModelObjective)):
        return OpaqueForm(objective)
    raise CapabilityError(NAME, f"a {type(objective).__name__} has no form on a device")


class KnownForm:
    """One of torch's own losses, value by value."""

    weighs_rows = True

    def __init__(self, objective: KnownObjective) -> None:
        self._objective = objective
        self._loss = objective.loss
        self.module: torch.nn.Module = objective.loss.module
        self.needs_shapes = True
        self._units_per_row: Optional[float] = None

    def learn(self, outputs: Any, batch: Batch) -> None:
        """Count the units of a row."""
        _, targets, _ = split_batch(batch.tree)
        units = self._loss.units(self._read(outputs), targets, None)
        self._units_per_row = units / batch.rows

    def measure(self, batch: Batch) -> Measure:
        """Rows of padding have factor 0; the class weights are in the values."""
        _, targets, sample_weight = split_batch(batch.host_tree)
        weight = self._objective.weight_before(batch)
        if weight is None:
            weight = (self._units_per_row or 0.0) * batch.num_counted
        factors = _counted(batch)
        if sample_weight is not None:
            factors = factors * _row_weights(sample_weight, batch)
        elif self._objective.weight is not None and self._loss.is_mean:
            own = self._loss.units_before(targets, None)
            units = (self._units_per_row or 0.0) * batch.rows if own is None else own
            factors = factors * (weight / units if units else 0.0)
        return Measure(weight, factors)

    def forward(self, model: Any, tree: Tree) -> Values:
        """One value a row: the sum over its units, with sample weights their mean (as Keras)."""
        x, targets, sample_weight = split_batch(tree)
        each = self._loss.each(self._read(call_model(model, x)), targets)
        by_row = each.reshape(each.shape[0], -1)
        averaged = sample_weight is not None and self._loss.reduction != "sum"
        return Values(by_row.mean(1) if averaged else by_row.sum(1))

    def _read(self, outputs: Any) -> Any:
        select = self._objective.select
        return outputs if select is None else select(outputs)


class OpaqueForm:
    """Any callable, or a model that returns its loss, of which only the reduction is known."""

    needs_shapes = False

    def __init__(self, objective: Union[OpaqueObjective, ModelObjective]) -> None:
        self._objective = objective
        self._is_own = isinstance(objective, ModelObjective)
        self.weighs_rows = objective.reduction == "none"

    def learn(self, outputs: Any, batch: Batch) -> None:
        """Nothing: rows are counted."""

    def measure(self, batch: Batch) -> Measure:
        """Rows have factors of their own where the loss has values of theirs.

        Raises:
            ConfigError: If a loss of one number is to weigh rows.
        """
        weight = float(self._objective.weight_before(batch) or 0.0)
        sample_weight = None if self._is_own else split_batch(batch.host_tree)[2]
        if self.weighs_rows:
            factors = _counted(batch)
            if sample_weight is not None:
                factors = factors * _row_weights(sample_weight, batch)
            return Measure(weight, factors)
        if sample_weight is not None:
            raise ConfigError(
                "a loss that returns one number cannot weigh rows, but the batch has sample "
                'weights; return one value a row and pass loss_reduction="none"'
            )
        return Measure(weight, 1.0 if self._objective.reduction == "sum" else weight)

    def forward(self, model: Any, tree: Tree) -> Values:
        """The loss as it is.

        Raises:
            ConfigError: If it has another shape than its reduction says.
        """
        if isinstance(self._objective, ModelObjective):
            value = take_loss(call_model(model, tree))[0]
        else:
            x, targets, _ = split_batch(tree)
            value = self._objective.loss(call_model(model, x), targets)
        shape = list(value.shape)
        if self.weighs_rows:
            if value.ndim == 0:
                raise ConfigError(
                    'loss_reduction="none": the loss is one number; return one value a row'
                )
            return Values(value.reshape(value.shape[0]))
        if value.numel() != 1:
            raise ConfigError(
                f'the loss has shape {shape}, expected a scalar; pass loss_reduction="none" if '
                "it is one value a row"
            )
        return Values(value.reshape(()))


class ObjectiveForm:
    """An objective with ``weight=``: S is its sum, W what ``weight=`` counts."""

    weighs_rows = False
    needs_shapes = False

    def __init__(self, objective: UserObjective, weight: Any) -> None:
        self._objective = objective
        self._weight = weight

    def learn(self, outputs: Any, batch: Batch) -> None:
        """Nothing: ``weight=`` counts."""

    def measure(self, batch: Batch) -> Measure:
        """The user's number; the objective's own is compared with it after the call."""
        return Measure(given_weight(self._weight, batch), 1.0)

    def forward(self, model: Any, tree: Tree) -> Values:
        """Sum, weight and metrics.

        Raises:
            ConfigError: If the objective returns something else.
        """
        loss = self._objective.function(model, tree)
        if not isinstance(loss, Loss):
            raise ConfigError(
                f"objective returned a {type(loss).__name__}; expected "
                "unified_ipu.Loss(sum=..., weight=..., metrics={...})"
            )
        pairs: List[Tuple[str, Any, Any]] = [("", 0.0, loss.weight)]
        pairs += [(name, pair[0], pair[1]) for name, pair in loss.metrics.items()]
        return Values(loss.sum.reshape(()), tuple(pairs))


def _counted(batch: Batch) -> Any:
    if batch.counted is None:
        return np.ones(batch.rows)
    return np.asarray(batch.counted, np.float64)


def _row_weights(sample_weight: Any, batch: Batch) -> Any:
    weights = np.asarray(sample_weight, np.float64)
    if weights.shape not in {(batch.rows,), (batch.rows, 1)}:
        raise ConfigError(
            f"sample_weight has shape {list(weights.shape)} for {batch.rows} rows; expected one "
            "number a row"
        )
    return weights.reshape(batch.rows)

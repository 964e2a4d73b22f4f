"""From a batch to the pair (S, W): ``loss=``, ``loss=None`` and ``objective=`` as one interface.

One module, since the four forms differ in what they share: who knows W, and when.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Protocol, Tuple

import numpy as np
import torch

from unified_ipu.adapter import Job, Loss, Tree, losses, split_batch
from unified_ipu.errors import ConfigError
from unified_ipu_torch.batches import Batch, call_model
from unified_ipu_torch.losses import KnownLoss, as_module, denominator, module_of

_REDUCTIONS = ("mean", "sum", "none")


class Score(NamedTuple):
    """What one micro-batch gave: S is ``value * factor``.

    Args:
        value: Scalar tensor that can be differentiated, or None when nothing counts.
        factor: W for losses that divided by it already, else 1.
        weight: W, a number or a scalar tensor.
        metrics: ``{name: (sum, weight)}``.
        outputs: Of the model, where it returned them.
        uncounted: Value of a loss with W = 0, which has no meaning but a graph.
    """

    value: Optional[torch.Tensor]
    factor: float
    weight: Any
    metrics: Mapping[str, Tuple[Any, Any]] = {}
    outputs: Any = None
    uncounted: Optional[torch.Tensor] = None


class Objective(Protocol):
    """The mathematics of a program on one micro-batch."""

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        ...

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W where it is known before forward, else None."""
        ...

    def score(self, model: torch.nn.Module, batch: Batch, weight: Optional[float]) -> Score:
        """Run forward; ``weight`` is what ``weight_before`` said."""
        ...

    def reach(self, model: torch.nn.Module, tree: Tree) -> Any:
        """Run forward where nothing counts; a tree of what backward can start from."""
        ...


def build_objective(job: Job, device: torch.device) -> Objective:
    """Choose the form of a job's loss.

    Args:
        job: As ``compile`` was given it.
        device: Where the loss runs; buffers of a loss module are moved there.

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
        return UserObjective(job.objective)
    if job.loss is None:
        return ModelObjective(job.weight, job.loss_reduction)
    loss = _native_loss(job, device)
    own = getattr(loss, "reduction", None)
    own = own if own in {*_REDUCTIONS, "batchmean"} else None
    asked = job.loss_reduction
    if asked is not None and own is not None and asked != ("mean" if own == "batchmean" else own):
        raise ConfigError(
            f"loss_reduction={asked!r}, but the loss has reduction={own!r}; leave loss_reduction= "
            f"out, or make the loss with reduction={asked!r}"
        )
    if denominator(loss) is not None:
        select = job.loss.select if isinstance(job.loss, losses.OutputLoss) else None
        return KnownObjective(KnownLoss(loss), job.weight, select)
    return OpaqueObjective(loss, job.weight, asked or own)


def _native_loss(job: Job, device: torch.device) -> Any:
    if isinstance(job.loss, losses.OutputLoss):
        loss: Any = module_of(job.loss, _floating_type(job.model))
    else:
        loss = as_module(job.loss)
    if isinstance(loss, torch.nn.Module):
        if any(True for _ in loss.parameters()):
            raise ConfigError(
                f"loss={type(loss).__name__} has parameters of its own; make it a part of the "
                "model, let forward return the loss, and pass loss=None"
            )
        loss.to(device)
    return loss


def _floating_type(model: torch.nn.Module) -> torch.dtype:
    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floating, torch.get_default_dtype())


def given_weight(function: Callable[[Any], Any], batch: Batch) -> float:
    """W as ``weight=`` counts it.

    Raises:
        ConfigError: If rows are padding, or it is no number.
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


class KnownObjective:
    """``loss=`` is one of torch's own: W is what it divides by itself."""

    def __init__(
        self,
        loss: KnownLoss,
        weight: Optional[Callable[[Any], Any]],
        select: Optional[Callable[[Any], Any]] = None,
    ) -> None:
        self.loss = loss
        self.weight = weight
        self.select = select

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        return self.weight is None and self.loss.usually_counts_rows

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W from ``weight=``, else from the targets; rows if samples have weights."""
        _, targets, sample_weight = split_batch(batch.host_tree)
        if self.weight is not None:
            return given_weight(self.weight, batch)
        if sample_weight is not None:
            return float(batch.num_counted)
        return self.loss.units_before(targets, batch.counted)

    def score(self, model: torch.nn.Module, batch: Batch, weight: Optional[float]) -> Score:
        """Run model and loss."""
        x, targets, sample_weight = split_batch(batch.tree)
        outputs = call_model(model, x)
        read = outputs if self.select is None else self.select(outputs)
        if batch.counted is None and sample_weight is None:
            if weight is None:
                weight = self.loss.units(read, targets, None)
            value = self.loss(read, targets)
            if self.loss.is_mean:
                return Score(value, weight, weight, outputs=outputs)
            return Score(value.sum(), 1.0, weight, outputs=outputs)
        each = self.loss.each(read, targets)
        if weight is None:
            weight = self.loss.units(read, targets, batch.counted)
        value = _sum_rows(each, batch, sample_weight, averaged=self.loss.reduction != "sum")
        return Score(value, 1.0, weight, outputs=outputs)

    def reach(self, model: torch.nn.Module, tree: Tree) -> Any:
        """Outputs of the model."""
        return call_model(model, split_batch(tree)[0])


class OpaqueObjective:
    """``loss=`` is any callable ``(outputs, targets)``."""

    def __init__(
        self, loss: Any, weight: Optional[Callable[[Any], Any]], reduction: Optional[str]
    ) -> None:
        self.loss = loss
        self.weight = weight
        self.reduction = reduction

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        return self.weight is None

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W from ``weight=``, else the number of rows."""
        if self.weight is not None:
            return given_weight(self.weight, batch)
        return float(batch.num_counted)

    def score(self, model: torch.nn.Module, batch: Batch, weight: Optional[float]) -> Score:
        """Run model and loss."""
        x, targets, sample_weight = split_batch(batch.tree)
        outputs = call_model(model, x)
        value = _checked_loss(self.loss(outputs, targets), "loss=")
        return opaque_score(value, batch, sample_weight, self.reduction, weight, outputs)

    def reach(self, model: torch.nn.Module, tree: Tree) -> Any:
        """Outputs of the model."""
        return call_model(model, split_batch(tree)[0])


class ModelObjective:
    """``loss=None``: the model returns a scalar, ``(loss, outputs)`` or has ``.loss``."""

    def __init__(self, weight: Optional[Callable[[Any], Any]], reduction: Optional[str]) -> None:
        self.weight = weight
        self.reduction = reduction

    @property
    def counts_rows(self) -> bool:
        """Whether W is usually the number of rows that are no padding."""
        return self.weight is None

    def weight_before(self, batch: Batch) -> Optional[float]:
        """W from ``weight=``, else the number of rows."""
        if self.weight is not None:
            return given_weight(self.weight, batch)
        return float(batch.num_counted)

    def score(self, model: torch.nn.Module, batch: Batch, weight: Optional[float]) -> Score:
        """Run the model on the whole batch."""
        value, outputs = take_loss(call_model(model, batch.tree))
        value = _checked_loss(value, "loss=None: the model")
        return opaque_score(value, batch, None, self.reduction, weight, outputs)

    def reach(self, model: torch.nn.Module, tree: Tree) -> Any:
        """The model's own loss."""
        return take_loss(call_model(model, tree))[0]

    def outputs(self, result: Any) -> Any:
        """Of what the model returned, all but the loss."""
        value, outputs = take_loss(result)
        is_loss = isinstance(value, torch.Tensor) and value.ndim == 0
        return outputs if is_loss and outputs is not None else result


class UserObjective:
    """``objective=``: the user returns the pair."""

    def __init__(self, function: Callable[[Any, Any], Loss]) -> None:
        self.function = function

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

    def score(self, model: torch.nn.Module, batch: Batch, weight: Optional[float]) -> Score:
        """Call the objective and check what it returned.

        Raises:
            ConfigError: If it is no ``Loss`` with a scalar sum.
        """
        del weight
        loss = self.function(model, batch.tree)
        if not isinstance(loss, Loss):
            raise ConfigError(
                f"objective returned a {type(loss).__name__}; expected "
                "unified_ipu.Loss(sum=..., weight=..., metrics={...})"
            )
        value = loss.sum
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise ConfigError(
                f"objective returned Loss(sum={_described(value)}); expected a scalar tensor: the "
                "sum of the loss over the units that weight counts"
            )
        # A count of 0 has an empty sum; its gradient may be NaN, so it is not asked for.
        empty = not isinstance(loss.weight, torch.Tensor) or loss.weight.device.type == "cpu"
        if empty and float(loss.weight) == 0.0:
            return Score(None, 1.0, 0.0, loss.metrics, uncounted=value)
        return Score(value, 1.0, loss.weight, loss.metrics)

    def reach(self, model: torch.nn.Module, tree: Tree) -> Any:
        """The sum that the objective returns."""
        return self.function(model, tree).sum


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


def opaque_score(
    value: torch.Tensor,
    batch: Batch,
    sample_weight: Any,
    reduction: Optional[str],
    weight: Optional[float],
    outputs: Any,
) -> Score:
    """Make (S, W) of a loss of which only its reduction is known.

    Args:
        value: One number, or one a row with reduction ``"none"``.
        batch: That it was computed from.
        sample_weight: ``[rows]``, or None.
        reduction: ``"mean"``, ``"sum"``, ``"none"``, or None: a mean.
        weight: W, or None: the number of rows that are no padding.
        outputs: Of the model.

    Raises:
        ConfigError: If the value has another shape, or rows would count that must not.
    """
    if weight is None:
        weight = float(batch.num_counted)
    if reduction == "none":
        if value.ndim == 0 or value.shape[0] != batch.rows or value.numel() != batch.rows:
            raise ConfigError(
                f'loss_reduction="none": the loss has shape {list(value.shape)} for {batch.rows} '
                "rows; return one value a row, or use objective= and count yourself"
            )
        each = value.reshape(batch.rows)
        return Score(
            _sum_rows(each, batch, sample_weight, averaged=False), 1.0, weight, outputs=outputs
        )
    if value.numel() != 1:
        raise ConfigError(
            f"the loss has shape {list(value.shape)}, expected a scalar; pass "
            'loss_reduction="none" if it is one value a row'
        )
    if batch.counted is not None or sample_weight is not None:
        what = "sample weights" if sample_weight is not None else "padding"
        raise ConfigError(
            f"a loss that returns one number cannot leave out or weigh rows, but the batch has "
            f'{what}; return one value a row and pass loss_reduction="none"'
        )
    return Score(value, 1.0 if reduction == "sum" else weight, weight, outputs=outputs)


def _sum_rows(each: torch.Tensor, batch: Batch, sample_weight: Any, *, averaged: bool) -> Any:
    """S over the rows that count: a value a unit, or a row's mean times its weight (as Keras).

    Raises:
        ConfigError: If there is not one sample weight a row.
    """
    by_row = each.reshape(batch.rows, -1)
    keep = None
    if batch.counted is not None:
        # Rows are taken out rather than multiplied with 0, which would keep their NaNs.
        keep = torch.from_numpy(np.asarray(batch.counted)).to(each.device)
        by_row = by_row[keep]
    if sample_weight is None:
        return by_row.sum()
    if tuple(sample_weight.shape) not in {(batch.rows,), (batch.rows, 1)}:
        raise ConfigError(
            f"sample_weight has shape {list(sample_weight.shape)} for {batch.rows} rows; expected "
            "one number a row"
        )
    row_weight = sample_weight.reshape(batch.rows).to(each.dtype)
    if keep is not None:
        row_weight = row_weight[keep]
    return ((by_row.mean(1) if averaged else by_row.sum(1)) * row_weight).sum()


def _checked_loss(value: Any, who: str) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    raise ConfigError(
        f"{who} returned {_described(value)}; expected a tensor that can be differentiated"
    )


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"

"""torch's own losses: by what each divides its mean, and how to call it.

The update law needs (S, W): the sum over counted units and their number or weight. torch's losses
return S / W by default, with four different W.

Source: torch 2.13, ``torch/nn/functional.py`` and ``aten/src/ATen/native/LossNLL.cpp``; held for
every loss of torch.nn against torch's own means by ``test_losses.py``.
"""

from __future__ import annotations

import copy
import functools
import math
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from unified_ipu.adapter import losses
from unified_ipu.errors import ConfigError

CLASSES = "the sum of the class weights of the targets that are not ignored"
ELEMENTS = "the number of elements of the result"
VECTORS = "the number of elements without the last axis"
ROWS = "the number of rows"

_DENOMINATORS: Dict[type, str] = {
    nn.CrossEntropyLoss: CLASSES,
    nn.NLLLoss: CLASSES,
    nn.L1Loss: ELEMENTS,
    nn.MSELoss: ELEMENTS,
    nn.SmoothL1Loss: ELEMENTS,
    nn.HuberLoss: ELEMENTS,
    nn.BCELoss: ELEMENTS,
    nn.BCEWithLogitsLoss: ELEMENTS,
    nn.PoissonNLLLoss: ELEMENTS,
    nn.GaussianNLLLoss: ELEMENTS,
    nn.KLDivLoss: ELEMENTS,
    nn.SoftMarginLoss: ELEMENTS,
    nn.HingeEmbeddingLoss: ELEMENTS,
    nn.MarginRankingLoss: ELEMENTS,
    nn.MultiLabelMarginLoss: VECTORS,
    nn.MultiLabelSoftMarginLoss: VECTORS,
    nn.MultiMarginLoss: VECTORS,
    nn.CosineEmbeddingLoss: VECTORS,
    nn.TripletMarginLoss: VECTORS,
    nn.TripletMarginWithDistanceLoss: VECTORS,
    nn.CTCLoss: ROWS,
}

_FUNCTIONS: Dict[Any, Callable[..., nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.l1_loss: nn.L1Loss,
    functional.mse_loss: nn.MSELoss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.huber_loss: nn.HuberLoss,
    functional.binary_cross_entropy: nn.BCELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.kl_div: nn.KLDivLoss,
    functional.soft_margin_loss: nn.SoftMarginLoss,
    functional.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    functional.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    functional.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
    functional.multi_margin_loss: nn.MultiMarginLoss,
}

_PASSING: Dict[type, Callable[[Any, Any], Tuple[Any, ...]]] = {
    nn.GaussianNLLLoss: lambda outputs, targets: (outputs[0], targets, outputs[1]),
    nn.CTCLoss: lambda outputs, targets: (outputs, *targets),
    nn.TripletMarginLoss: lambda outputs, _: tuple(outputs),
    nn.TripletMarginWithDistanceLoss: lambda outputs, _: tuple(outputs),
    nn.CosineEmbeddingLoss: lambda outputs, targets: (*outputs, targets),
    nn.MarginRankingLoss: lambda outputs, targets: (*outputs, targets),
}
"""Arguments of the losses that do not take (outputs, targets)."""

_FEW = 128
"""Class indices that a list counts sooner than numpy's functions, which are cold in the caches."""

_NARROW = frozenset({torch.int32, torch.int16, torch.int8})


def as_module(loss: Any) -> Any:
    """Return the module of one of torch's loss functions, or ``loss`` itself.

    Args:
        loss: A module, a function of ``torch.nn.functional``, a ``functools.partial`` of one with
            keywords only, or any callable.

    Returns:
        A module of ``torch.nn`` where there is one of the same meaning.

    Raises:
        ConfigError: If a partial has keywords that the module lacks.
    """
    keywords: Dict[str, Any] = {}
    function = loss
    if isinstance(loss, functools.partial) and not loss.args:
        function, keywords = loss.func, loss.keywords
    try:
        module = _FUNCTIONS.get(function)
    except TypeError:  # a callable that cannot be hashed is none of torch's
        return loss
    if module is None:
        return loss
    try:
        return module(**keywords)
    except TypeError as error:
        raise ConfigError(
            f"loss={loss!r}: {module.__name__} has no such keyword ({error}); pass objective= "
            "instead, and return the sum and its weight"
        ) from error


def module_of(loss: losses.OutputLoss, dtype: torch.dtype) -> nn.Module:
    """Return the module of ``torch.nn`` that computes one of ``ui.losses``.

    Args:
        loss: What it is to compute.
        dtype: Of the model's outputs: class weights must have it.

    Raises:
        ConfigError: If it is a kind that a newer core brought.
    """
    by_class: Dict[str, Callable[..., nn.Module]] = {
        "softmax_cross_entropy": nn.CrossEntropyLoss,
        "negative_log_likelihood": nn.NLLLoss,
    }
    by_element: Dict[str, Callable[..., nn.Module]] = {
        "sigmoid_cross_entropy": nn.BCEWithLogitsLoss,
        "mean_squared_error": nn.MSELoss,
        "mean_absolute_error": nn.L1Loss,
    }
    if loss.kind in by_class:
        weights = loss.class_weights
        weight = None if weights is None else torch.tensor(weights, dtype=dtype)
        ignored = -100 if loss.ignore_index is None else loss.ignore_index
        return by_class[loss.kind](weight, ignore_index=ignored, reduction=loss.reduction)
    if loss.kind in by_element:
        return by_element[loss.kind](reduction=loss.reduction)
    if loss.kind == "huber":
        return nn.HuberLoss(reduction=loss.reduction, delta=loss.delta)
    raise ConfigError(f"ui.losses.{loss.kind} is not written for torch; pass a loss of torch.nn")


def denominator(loss: Any) -> Optional[str]:
    """Say what one of torch's losses divides its mean by, or None for others."""
    for kind, words in _DENOMINATORS.items():
        # A subclass with a forward of its own may divide by anything.
        if isinstance(loss, kind) and type(loss).forward is kind.forward:  # type: ignore[attr-defined]  # a Module
            if getattr(loss, "reduction", None) == "batchmean":
                return ROWS
            return words
    return None


class KnownLoss:
    """One of torch's losses, whose W is known.

    Args:
        loss: The user's module; it is called as it is unless rows do not count or have weights.
    """

    def __init__(self, loss: Any) -> None:
        words = denominator(loss)
        if words is None:
            raise ConfigError(f"{type(loss).__name__} is none of torch's own losses")
        self.words = words
        self.reduction: str = loss.reduction
        self.is_mean = self.reduction in {"mean", "batchmean"}
        """Whether the loss divides by its W itself."""
        self._loss = loss
        self._each = copy.copy(loss)
        self._each.reduction = "none"
        self._takes_indices = words == CLASSES
        self._ignored = getattr(loss, "ignore_index", None)
        self._has_class_weights = self._takes_indices and loss.weight is not None
        self._pass = _PASSING.get(next(k for k in _DENOMINATORS if isinstance(loss, k)))

    @property
    def module(self) -> Any:
        """What ``each`` calls: the user's loss with reduction ``"none"``."""
        return self._each

    @property
    def usually_counts_rows(self) -> bool:
        """Whether W is the number of rows for one plain class index a row."""
        return self.words == ROWS or (self._takes_indices and not self._has_class_weights)

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss as the user configured it."""
        return self._call(self._loss, outputs, targets)

    def each(self, outputs: Any, targets: Any) -> torch.Tensor:
        """One value a unit; their sum is S."""
        values = self._call(self._each, outputs, targets)
        if isinstance(self._loss, nn.CTCLoss) and self.is_mean:
            # The mean of CTC divides each row by the length of its target first.
            lengths = torch.as_tensor(targets[2], device=values.device)
            values = values / lengths.to(values.dtype).clamp(min=1)
        return values

    def units_before(self, targets: Any, counted: Optional[Any]) -> Optional[float]:
        """W if the targets alone tell it, else None.

        Args:
            targets: As they came from the loader, ``[rows, ...]``.
            counted: ``[rows]`` bool, or None if all rows count.
        """
        if not self._takes_indices:
            return None
        array = _on_host(targets)
        if counted is None and not self._has_class_weights and array.dtype.kind != "f":
            if array.ndim == 1 and array.size <= _FEW:
                return float(array.size - array.tolist().count(self._ignored))
            return float(array.size - np.count_nonzero(array == self._ignored))
        if array.dtype.kind == "f":  # probabilities of classes: every position counts
            share = 1.0 if counted is None else float(np.mean(counted))
            return float(array.size / array.shape[1] * share)
        kept = array != self._ignored
        if counted is not None:
            kept = kept & counted.reshape((-1,) + (1,) * (array.ndim - 1))
        if not self._has_class_weights:
            return float(np.count_nonzero(kept))
        weights = _on_host(self._loss.weight)
        # An index that is out of range is torch's to report.
        return float(np.take(weights, array[kept], mode="clip").sum(dtype=np.float64))

    def units(self, outputs: Any, targets: Any, counted: Optional[Any]) -> float:
        """W, from shapes: nothing is read from the device except class targets.

        Args:
            outputs: Of the model.
            targets: ``[rows, ...]``.
            counted: ``[rows]`` bool, or None if all rows count.
        """
        known = self.units_before(targets, counted)
        if known is not None:
            return known
        shape = self._broadcast(outputs, targets)
        share = 1.0 if counted is None else float(np.mean(counted))
        if self.words == ROWS:
            # CTC: outputs are [time, rows, classes].
            rows = shape[1] if isinstance(self._loss, nn.CTCLoss) else shape[0]
            return rows * share
        return math.prod(shape[:-1] if self.words == VECTORS else shape) * share

    def _broadcast(self, outputs: Any, targets: Any) -> Tuple[int, ...]:
        parts = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        if self.words == ELEMENTS:
            parts.append(targets)
        if isinstance(self._loss, nn.CTCLoss):
            return tuple(parts[0].shape)
        broadcast_shapes: Any = torch.broadcast_shapes  # torch gives it no types
        return tuple(broadcast_shapes(*(part.shape for part in parts)))

    def _call(self, loss: Any, outputs: Any, targets: Any) -> torch.Tensor:
        if self._takes_indices and targets.dtype in _NARROW:
            targets = targets.long()  # the only class indices torch takes are int64 and uint8
        passing = self._pass
        result: torch.Tensor
        result = loss(outputs, targets) if passing is None else loss(*passing(outputs, targets))
        return result


def _on_host(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        if array.is_cpu and not array.requires_grad:
            return array.numpy()
        return array.detach().cpu().numpy()
    return np.asarray(array)

"""Losses as nodes of PopART: one value a row, times its coefficient, added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np
from torch import nn

from unified_ipu.adapter import losses
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.errors import NAME
from unified_ipu_torch.losses import as_module

COEFFICIENTS, TARGETS = "unified_ipu/coefficients", "unified_ipu/targets"
_NO_TARGET = -100
_BY_CLASS = frozenset({"softmax_cross_entropy", "negative_log_likelihood"})

Shape = Tuple[int, ...]


def described_loss(loss: Any) -> Optional[losses.OutputLoss]:
    """One of ``ui.losses`` that a loss is, torch's own included; None if it is none.

    Args:
        loss: As ``compile`` was given it.
    """
    if isinstance(loss, losses.OutputLoss):
        return loss
    module = as_module(loss)
    kind = type(module)
    if kind in {nn.CrossEntropyLoss, nn.NLLLoss}:
        if getattr(module, "label_smoothing", 0.0):
            return None
        weights = None if module.weight is None else module.weight.tolist()
        make = losses.softmax_cross_entropy
        if kind is nn.NLLLoss:
            make = losses.negative_log_likelihood
        return make(
            class_weights=weights, ignore_index=module.ignore_index, reduction=module.reduction
        )
    if kind is nn.HuberLoss:
        return losses.huber(delta=module.delta, reduction=module.reduction)
    if kind is nn.BCEWithLogitsLoss and (
        module.weight is not None or module.pos_weight is not None
    ):
        return None
    simple: Dict[Any, Callable[..., losses.OutputLoss]] = {
        nn.BCEWithLogitsLoss: losses.sigmoid_cross_entropy,
        nn.L1Loss: losses.mean_absolute_error,
        nn.MSELoss: losses.mean_squared_error,
    }
    return simple[kind](reduction=module.reduction) if kind in simple else None


@dataclass(frozen=True)
class RowLoss:
    """One of ``ui.losses`` on an output of the graph.

    Args:
        loss: What it computes.
        output: Name of the output.
    """

    loss: losses.OutputLoss
    output: str

    @property
    def by_class(self) -> bool:
        """Whether targets are class indices."""
        return self.loss.kind in _BY_CLASS

    @property
    def target_dtype(self) -> np.dtype:
        """Of what is fed: a device has no int64."""
        return np.dtype(np.int32 if self.by_class else np.float32)

    def coefficients(self, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """What is fed: ``[rows]``, or ``[rows, ...]`` with the weight of each target's class.

        Args:
            rows: ``[rows]``, one coefficient a row.
            targets: ``[rows, ...]``.
        """
        if self.loss.class_weights is None:
            return rows.astype(np.float32)
        weights = np.asarray(self.loss.class_weights, np.float64)
        # Of an index that is out of range nothing is known; PopART leaves such a target out.
        units = np.take(weights, targets, mode="clip")
        each = rows.reshape((-1,) + (1,) * (targets.ndim - 1)) * units
        return np.asarray(each, np.float32)

    def build(self, builder: Any, sdk: Any, opset: int, shapes: Tuple[Shape, Shape, Shape]) -> str:
        """Add inputs for targets and coefficients, and the loss.

        Args:
            builder: Holds the model.
            sdk: PopART.
            opset: Of the model.
            shapes: Of the output, the targets and the coefficients of a micro-batch.

        Returns:
            Name of the scalar that is differentiated.
        """
        output, targets, coefficients = shapes
        kind = "INT32" if self.by_class else "FLOAT"
        t = builder.addInputTensor(sdk.TensorInfo(kind, list(targets)), TARGETS)
        c = builder.addInputTensor(sdk.TensorInfo("FLOAT", list(coefficients)), COEFFICIENTS)
        ops = getattr(builder, f"aiOnnxOpset{opset}")
        if self.by_class:
            each = self._by_class(builder.aiGraphcore, ops, sdk, t, len(output))
            rank = len(targets)
        else:
            each = _by_element(ops, self.loss, self.output, t)
            rank = max(len(output), len(targets))
        if rank > len(coefficients):
            each = ops.reducesum([each], axes=list(range(len(coefficients), rank)), keepdims=0)
        return weighted_sum(ops, each, c, len(coefficients))

    def _by_class(self, own: Any, ops: Any, sdk: Any, targets: str, rank: int) -> str:
        ignored = self.loss.ignore_index
        scores = self.output
        if rank > 2:  # noqa: PLR2004  classes lie on axis 1, PopART wants them last
            scores = ops.transpose([scores], perm=[0, *range(2, rank), 1])
        if self.loss.kind == "softmax_cross_entropy":
            scores = ops.logsoftmax([scores], axis=rank - 1)
        found: str = own.nllloss(
            [scores, targets],
            reduction=sdk.ReductionType.NoReduction,
            ignoreIndex=_NO_TARGET if ignored is None else ignored,
            inputIsLogProbability=True,
        )
        return found


def weighted_sum(ops: Any, each: str, coefficients: str, rank: int) -> str:
    """Add ``sum(each x coefficients)``; returns the name of the scalar."""
    product = ops.mul([each, coefficients])
    found: str = ops.reducesum([product], axes=list(range(rank)), keepdims=0)
    return found


def _by_element(ops: Any, loss: losses.OutputLoss, output: str, targets: str) -> str:
    if loss.kind == "sigmoid_cross_entropy":
        # log(1 + exp(z)) - z t: smooth at 0, where weights of 0 begin.
        return str(ops.sub([ops.softplus([output]), ops.mul([output, targets])]))
    difference = ops.sub([output, targets])
    if loss.kind == "mean_squared_error":
        return str(ops.mul([difference, difference]))
    distance = ops.abs([difference])
    if loss.kind == "mean_absolute_error":
        return str(distance)
    if loss.kind == "huber":
        delta, half = (ops.constant(np.array(v, np.float32)) for v in (loss.delta, 0.5))
        near = ops.min([distance, delta])
        square = ops.mul([half, ops.mul([near, near])])
        return str(ops.add([square, ops.mul([delta, ops.sub([distance, near])])]))
    raise CapabilityError(NAME, f"ui.losses.{loss.kind} is not written for PopART")


@dataclass(frozen=True)
class GraphOutputLoss:
    """A loss that the graph computes: one number a micro-batch, or one a row.

    Args:
        output: Its name.
        weighs_rows: Whether it is one value a row.
    """

    output: str
    weighs_rows: bool

    def build(self, builder: Any, sdk: Any, opset: int, rows: int) -> str:
        """Add an input for coefficients, and the sum.

        Args:
            builder: Holds the model.
            sdk: PopART.
            opset: Of the model.
            rows: How many coefficients a micro-batch has.

        Returns:
            Name of the scalar that is differentiated.
        """
        c = builder.addInputTensor(sdk.TensorInfo("FLOAT", [rows]), COEFFICIENTS)
        ops = getattr(builder, f"aiOnnxOpset{opset}")
        each: Sequence[str] = [self.output]
        if self.weighs_rows:  # [rows] or [rows, 1]
            each = [ops.reshape([self.output, ops.constant(np.array([rows], np.int64))])]
        return weighted_sum(ops, each[0], c, 1)

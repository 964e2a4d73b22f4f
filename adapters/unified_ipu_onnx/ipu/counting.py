"""What a program counts: W and factors of rows before they are fed, and the loss in the graph."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Tuple

import numpy as np

from unified_ipu.adapter import Job, Measure, MicroBatch, Tree, inputs_of, losses, split_batch
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.ipu.feeds import graph_feeds, shapes_of, signature, targets_of
from unified_ipu_onnx.ipu.losses import (
    COEFFICIENTS,
    TARGETS,
    GraphOutputLoss,
    RowLoss,
    described_loss,
)
from unified_ipu_onnx.ipu.model import DeviceModel
from unified_ipu_onnx.ipu.twin import HostTwin
from unified_ipu_onnx.losses import NoLoss, loss_output

Shape = Tuple[int, ...]
Shapes = Mapping[str, Shape]


class Counting(Protocol):
    """The loss of a program, on both sides."""

    weighs_rows: bool

    def inputs(self, micro: MicroBatch) -> Tree:
        """What of a batch the graph is fed with."""
        ...

    def targets(self, micro: MicroBatch) -> Optional[np.ndarray]:
        """Targets that the loss is fed with beside the graph, or None."""
        ...

    def coefficients(self, rows: np.ndarray, targets: Optional[np.ndarray]) -> np.ndarray:
        """Coefficients as they are fed, of ``[rows]`` or ``[1]``."""
        ...

    def measure(self, micro: MicroBatch) -> Measure:
        """W, and a factor a row or one number."""
        ...

    def build(self, builder: Any, sdk: Any, opset: int, shapes: Shapes) -> str:
        """Add the loss to a graph; returns the name of the scalar that is differentiated."""
        ...


def counting_of(twin: HostTwin, model: DeviceModel, job: Job) -> Counting:
    """Choose the form of a job's loss.

    Args:
        twin: Has checked the job.
        model: As the device takes it.
        job: As ``compile`` was given it.

    Raises:
        CapabilityError: If PopART cannot compute the loss.
    """
    if isinstance(twin.objective, NoLoss):
        return NoCounting()
    if job.loss is None or isinstance(job.loss, str):
        output = loss_output(job.loss, job.model, twin.source.proto)
        return GraphCounting(twin, GraphOutputLoss(output, job.loss_reduction == "none"), job)
    loss = described_loss(job.loss)
    if loss is None:
        raise CapabilityError(
            NAME,
            f"PopART cannot compute loss={job.loss!r}; pass one of unified_ipu.losses, or let the "
            "graph compute its loss",
        )
    return RowCounting(twin, model, RowLoss(loss, _output(loss, model)), job.weight)


def _output(loss: losses.OutputLoss, model: DeviceModel) -> str:
    if isinstance(loss.output, str):
        return loss.output
    if loss.output is None and len(model.outputs) == 1:
        return str(model.outputs[0])
    raise ConfigError(
        f"{loss.kind}(output={loss.output!r}): the graph has the outputs {list(model.outputs)}; "
        "name one of them"
    )


class NoCounting:
    """A program without a loss: it only predicts and measures."""

    weighs_rows = True

    def inputs(self, micro: MicroBatch) -> Tree:
        """The first part of a batch."""
        return inputs_of(micro.tree)

    def targets(self, micro: MicroBatch) -> None:
        """Nothing."""
        del micro

    def coefficients(self, rows: np.ndarray, targets: Optional[np.ndarray]) -> np.ndarray:
        """Not asked for, as nothing is trained."""
        del targets
        return rows

    def measure(self, micro: MicroBatch) -> Measure:
        """W is 0: the loss is that of nothing."""
        return Measure(0.0, np.zeros(micro.rows))

    def build(self, builder: Any, sdk: Any, opset: int, shapes: Shapes) -> str:
        """Not asked for, as nothing is trained.

        Raises:
            ConfigError: Always.
        """
        del builder, sdk, opset, shapes
        raise ConfigError("this program has no loss")


class RowCounting:
    """A loss that is one of ``ui.losses``: one value a row, or a unit of a row.

    Args:
        twin: Its objective knows W where targets tell it.
        model: Tells the shape of the output.
        loss: On which output.
        weight: ``compile(weight=)``, or None.
    """

    weighs_rows = True

    def __init__(
        self,
        twin: HostTwin,
        model: DeviceModel,
        loss: RowLoss,
        weight: Optional[Callable[[Any], Any]],
    ) -> None:
        self._twin, self._model, self._loss, self._weight = twin, model, loss, weight
        self._outputs: Dict[Any, Shape] = {}

    def inputs(self, micro: MicroBatch) -> Tree:
        """X of a batch."""
        return inputs_of(micro.tree)

    def targets(self, micro: MicroBatch) -> Optional[np.ndarray]:
        """Y of a batch."""
        return targets_of(micro, self._loss.target_dtype)

    def coefficients(self, rows: np.ndarray, targets: Optional[np.ndarray]) -> np.ndarray:
        """One a row, or one a target where classes have weights."""
        return self._loss.coefficients(rows, np.asarray(targets))

    def measure(self, micro: MicroBatch) -> Measure:
        """W and a factor a row.

        Raises:
            ConfigError: If there is not one sample weight a row.
        """
        _, targets, sample_weight = split_batch(micro.tree)
        loss, counted = self._loss.loss, counted_rows(micro)
        units = self._units(micro, np.asarray(targets))  # [rows, units of a row]
        own = float(units[counted].sum())
        known = self._twin.objective.weight_before(self._twin.batch(micro))
        weight = own if known is None else float(known)
        factors = counted.astype(np.float64)
        if sample_weight is not None:
            per_row = units.shape[1] if loss.reduction != "sum" else 1
            factors *= _row_weights(sample_weight, micro.rows) / per_row
        elif self._weight is not None and loss.reduction == "mean":
            factors *= weight / own if own else 0.0
        return Measure(weight, factors)

    def build(self, builder: Any, sdk: Any, opset: int, shapes: Shapes) -> str:
        """Add inputs for targets and coefficients, and the loss."""
        inputs = {name: shape for name, shape in shapes.items() if name in self._model.dtypes}
        three = (self._output_shape(inputs), shapes[TARGETS], shapes[COEFFICIENTS])
        return self._loss.build(builder, sdk, opset, three)

    def _units(self, micro: MicroBatch, targets: np.ndarray) -> np.ndarray:
        loss = self._loss.loss
        if not self._loss.by_class:
            feeds = graph_feeds(self.inputs(micro), self._model.dtypes)
            output = self._output_shape(shapes_of(feeds))
            whole = np.broadcast(_empty(output), _empty(targets.shape)).shape
            return np.ones((micro.rows, int(np.prod(whole[1:], dtype=np.int64))))
        flat = targets.reshape(micro.rows, -1)
        ignored = -100 if loss.ignore_index is None else loss.ignore_index
        units = np.ones(flat.shape)
        if loss.class_weights is not None:
            units = np.take(np.asarray(loss.class_weights, np.float64), flat, mode="clip")
        return np.where(flat == ignored, 0.0, units)

    def _output_shape(self, inputs: Shapes) -> Shape:
        key = signature(inputs)
        if key not in self._outputs:
            self._outputs[key] = self._model.shape_of(self._loss.output, inputs)
        return self._outputs[key]


class GraphCounting:
    """A loss that the graph computes.

    Args:
        twin: Its objective says W: rows, or ``weight=``.
        loss: Which output.
        job: Whether one number is a sum, and not a mean.
    """

    def __init__(self, twin: HostTwin, loss: GraphOutputLoss, job: Job) -> None:
        self._twin, self._loss, self._is_sum = twin, loss, job.loss_reduction == "sum"
        self.weighs_rows = loss.weighs_rows

    def inputs(self, micro: MicroBatch) -> Tree:
        """The whole batch."""
        return micro.tree

    def targets(self, micro: MicroBatch) -> None:
        """Nothing: they are inputs of the graph."""
        del micro

    def coefficients(self, rows: np.ndarray, targets: Optional[np.ndarray]) -> np.ndarray:
        """As they are."""
        del targets
        return rows.astype(np.float32)

    def measure(self, micro: MicroBatch) -> Measure:
        """W, and a factor a row or one number.

        Raises:
            CapabilityError: If the weight needs the model's outputs.
        """
        weight = self._twin.objective.weight_before(self._twin.batch(micro))
        if weight is None:
            raise CapabilityError(
                NAME,
                "the weight of this loss is known after forward only, a device needs it before; "
                "pass weight=, or one of unified_ipu.losses on an output",
            )
        if self.weighs_rows:
            return Measure(float(weight), counted_rows(micro).astype(np.float64))
        return Measure(float(weight), 1.0 if self._is_sum else float(weight))

    def build(self, builder: Any, sdk: Any, opset: int, shapes: Shapes) -> str:
        """Add an input for coefficients, and the sum."""
        return self._loss.build(builder, sdk, opset, shapes[COEFFICIENTS][0])


def counted_rows(micro: MicroBatch) -> np.ndarray:
    """``[rows]`` bool, False for padding."""
    if micro.sample_weight is None:
        return np.ones(micro.rows, bool)
    return np.asarray(micro.sample_weight != 0)


def _row_weights(sample_weight: Any, rows: int) -> np.ndarray:
    found = np.asarray(sample_weight, np.float64)
    if found.shape not in {(rows,), (rows, 1)}:
        raise ConfigError(
            f"sample_weight has shape {list(found.shape)} for {rows} rows; expected one number a "
            "row"
        )
    return found.reshape(rows)


def _empty(shape: Shape) -> np.ndarray:
    """An array of a shape that takes no memory."""
    return np.broadcast_to(np.empty((), np.int8), shape)

"""Programs of a model: a step traced once, run for all steps and replicas of an execution."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import tensorflow as tf

from unified_ipu.device import CallShape, Fabric, Position, Reduction, infer, train
from unified_ipu_tensorflow.emulated.ipu.gradient_accumulation import (
    GradientAccumulationReductionMethod as Method,
)
from unified_ipu_tensorflow.emulated.keras.generations import (
    apply_gradients,
    prepare_optimizer,
    training_step,
)
from unified_ipu_tensorflow.emulated.keras.replicas import ReplicaStates

# Each gradient is divided by the count before it is added (MEAN), or weighs into a mean so far.
_ACCUMULATIONS = {
    Method.SUM: "sum",
    Method.MEAN: "mean_scaled",
    Method.RUNNING_MEAN: "mean_running",
}

Results = List[List[Any]]
"""What each step returned, for each replica."""


class TensorArithmetic:
    """Sums of gradients as eager tensors; see ``unified_ipu.device.Arithmetic``.

    Args:
        dtype: Of accumulators; None for that of the gradients.
    """

    def __init__(self, dtype: Any) -> None:
        self._dtype = None if dtype is None else tf.as_dtype(dtype)

    def start(self, gradient: Any) -> Any:
        """The gradient, in the type of accumulators."""
        return gradient if self._dtype is None else tf.cast(gradient, self._dtype)

    def add(self, total: Any, value: Any) -> Any:
        """The sum."""
        return total + tf.cast(value, total.dtype)

    def scale(self, value: Any, factor: float) -> Any:
        """The product."""
        return value * tf.cast(factor, value.dtype)

    def finish(self, total: Any, factor: float) -> Any:
        """The product: the optimizer gets it in the type of accumulators."""
        return total if factor == 1.0 else self.scale(total, factor)

    def across(self, total: Any, fabric: Fabric) -> Any:
        """The sum over processes."""
        return tf.constant(fabric.sum(np.asarray(total)), total.dtype)


class TrainingProgram:
    """Forward, backward and the optimizer's step of one model.

    Args:
        model: Built and compiled.
        spec: Of the elements of the data set.
        accumulation: Micro-batches of a replica behind an update.
        method: How a replica's gradients are reduced; replicas are summed.
        dtype: Of accumulators, or None.
    """

    def __init__(
        self, model: Any, spec: Any, *, accumulation: int, method: Method, dtype: Any
    ) -> None:
        self._accumulation = accumulation
        self._reduction = Reduction(accumulation=_ACCUMULATIONS[method], replicas="sum")
        self._arithmetic = TensorArithmetic(dtype if accumulation > 1 else None)
        self._variables = list(model.trainable_variables)
        prepare_optimizer(model.optimizer, self._variables)
        self._step = traced(lambda element: training_step(model, element), spec)
        summed = dtype if accumulation > 1 else None
        specs = [tf.TensorSpec(own.shape, summed or own.dtype) for own in self._variables]
        self._apply = traced(
            lambda gradients: apply_gradients(model.optimizer, list(gradients), self._variables),
            tuple(specs),
        )

    def run(
        self, batches: Sequence[Any], states: ReplicaStates, *, replicas: int, fabric: Fabric
    ) -> Results:
        """Run one execution.

        Args:
            batches: As they come from the data set: each step's of all replicas together.
            states: Of the replicas.
            replicas: Of this process.
            fabric: The processes of the device.

        Returns:
            Logs of each step, for each replica.
        """
        shape = CallShape(
            len(batches) // (self._accumulation * replicas), self._accumulation, replicas
        )
        results: Results = [[] for _ in range(len(batches) // replicas)]

        def micro_step(position: Position) -> Dict[str, Any]:
            states.load(position.replica)
            gradients, logs = self._step(batches[position.slice])
            step = position.iteration * self._accumulation + position.step
            results[step].append(logs)
            return {str(index): gradient for index, gradient in enumerate(gradients)}

        def apply(gradients: Dict[str, Any]) -> None:
            self._apply(tuple(gradients[str(index)] for index in range(len(self._variables))))

        train(
            shape,
            self._reduction,
            micro_step,
            apply,
            arithmetic=self._arithmetic,
            fabric=fabric,
        )
        states.load(0)
        return results


class InferenceProgram:
    """Forward of one model.

    Args:
        step: From an element of the data set to what it returns.
        spec: Of the elements.
    """

    def __init__(self, step: Callable[[Any], Any], spec: Any) -> None:
        self._step = traced(step, spec)

    def run(self, batches: Sequence[Any], states: ReplicaStates, *, replicas: int) -> Results:
        """Run one execution; see ``TrainingProgram.run``."""
        results: Results = [[] for _ in range(len(batches) // replicas)]

        def micro_step(position: Position) -> None:
            states.load(position.replica)
            results[position.iteration].append(self._step(batches[position.slice]))

        infer(CallShape(len(results), 1, replicas), micro_step)
        states.load(0)
        return results


def traced(step: Callable[[Any], Any], spec: Any) -> Callable[[Any], Any]:
    """A step as a graph, made now: then all variables are there."""
    graph = tf.function(step, autograph=False)
    graph.get_concrete_function(spec)
    return graph  # type: ignore[no-any-return]  # TensorFlow has no types

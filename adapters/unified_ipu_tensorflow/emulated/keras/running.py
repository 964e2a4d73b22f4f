"""What ``fit``, ``evaluate`` and ``predict`` have in common, and the latter two."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.device import power_of_two
from unified_ipu_tensorflow.emulated.ipu.config import configured, ipus_of_device
from unified_ipu_tensorflow.emulated.ipu.ipu_strategy import has_strategy
from unified_ipu_tensorflow.emulated.keras.batches import Feed, Steps, count_steps, read_feed
from unified_ipu_tensorflow.emulated.keras.generations import predict_step, test_step, unpacked
from unified_ipu_tensorflow.emulated.keras.options import ReplicatedMetricReductionMethod as Method
from unified_ipu_tensorflow.emulated.keras.pipelines import check_pipeline
from unified_ipu_tensorflow.emulated.keras.programs import InferenceProgram, Results
from unified_ipu_tensorflow.emulated.keras.replicas import ReplicaStates
from unified_ipu_tensorflow.keras_generation import tf_variable

Triple = Tuple[Any, Any, Any]


class Run(NamedTuple):
    """What a call of one of the three methods works on."""

    feed: Feed
    steps: Steps
    replicas: int
    fabric: Any


def run_evaluate(model: Any, data: Triple, *, batch_size: Any, steps: Any) -> Dict[str, Any]:
    """Logs of the last step; see ``Extension.evaluate``.

    Raises:
        NotImplementedError: On several processes.
    """
    check_compiled(model, "evaluate")
    if model._ipu_state.strategy.num_replicas_in_sync > 1:
        raise NotImplementedError("evaluate on several processes is not emulated; use predict")
    results = _infer(model, "evaluate", data, test_step, batch_size=batch_size, steps=steps)
    return plain(results[-1][-1])


def run_predict(model: Any, data: Triple, *, batch_size: Any, steps: Any) -> Any:
    """Outputs of all rows; see ``Extension.predict``."""
    if model._ipu_state.metric_reduction is Method.LIST:
        raise NotImplementedError(
            "predict with replicated_metric_reduction_method LIST is not emulated"
        )
    results = _infer(model, "predict", data, predict_step, batch_size=batch_size, steps=steps)
    blocks = [outputs for step in results for outputs in step]
    return tf.nest.map_structure(lambda *rows: np.concatenate(rows), *map(_arrays, blocks))


def _infer(
    model: Any,
    method: str,
    data: Triple,
    step: Callable[[Any, Any], Any],
    *,
    batch_size: Any,
    steps: Any,
) -> Results:
    state = model._ipu_state
    feed = read_feed(*data, batch_size=batch_size, steps=steps, shuffle=False)
    run = prepare(model, feed, 1)
    if state.is_pipelined:
        check_pipeline(state.stages, state.schedule, run.steps.per_execution, training=False)
    program = state.programs.get(method)
    if program is None:
        program = InferenceProgram(lambda element: step(model, element), feed.dataset.element_spec)
        state.programs[method] = program
    if method == "evaluate":
        model.reset_metrics()
    states = ReplicaStates(model, run.replicas)
    results: Results = []
    for _, batches in executions(run, iter(feed.dataset)):
        found = program.run(batches, states, replicas=run.replicas)
        results += reduced(found, state.metric_reduction)
    return results


def prepare(model: Any, feed: Feed, epochs: int) -> Run:
    """Build the model, count replicas and steps, and check them.

    Args:
        model: Compiled.
        feed: Its data.
        epochs: That will be run.

    Raises:
        RuntimeError: Outside of a strategy's scope.
        ValueError: If the model or its data does not fit the device.
        FailedPreconditionError: If no IPU system is configured.
    """
    state = model._ipu_state
    if not has_strategy():
        raise RuntimeError("fit, evaluate and predict are called inside strategy.scope()")
    if not model.built:
        zeros = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), feed.dataset.element_spec
        )
        model(unpacked(zeros)[0])
    for variable in map(tf_variable, model.variables):
        if variable.dtype == tf.float64:
            raise ValueError(f"{variable.name} has float64, which is not on the device")
    values = configured()
    if values is None:
        raise tf.errors.FailedPreconditionError(
            None, None, "the IPU system is not configured; call configure_ipu_system first"
        )
    ipus = ipus_of_device(values, state.strategy.ordinal)
    shards = max(state.stages) + 1 if state.is_pipelined else 1
    if shards > ipus:
        raise ValueError(
            f"Current device has {ipus} IPUs attached, however the current model requires a "
            f"multiple of {power_of_two(shards)} IPUs."
        )
    replicas = ipus // power_of_two(shards)
    steps = count_steps(
        feed, replicas=replicas, per_execution=state.steps_per_execution, epochs=epochs
    )
    return Run(feed, steps, replicas, state.strategy.fabric())


def check_compiled(model: Any, method: str) -> None:
    """Refuse a model that was not compiled.

    Raises:
        RuntimeError: Naming the method.
    """
    if not model._ipu_state.is_compiled:
        raise RuntimeError(f"You must compile your model before calling `{method}`.")


def executions(run: Run, iterator: Any) -> Iterator[Tuple[int, List[Any]]]:
    """The first step of each execution of an epoch, and its batches, those of all replicas."""
    count = run.steps.per_execution * run.replicas
    for step in range(0, run.steps.per_epoch, run.steps.per_execution):
        yield step, [next(iterator) for _ in range(count)]


def reduced(results: Results, method: Method) -> Results:
    """Every replica's values after the reduction over replicas, step by step."""
    if method is Method.NONE or len(results[0]) == 1:
        return results
    return [[_over_replicas(step, method)] * len(step) for step in results]


def _over_replicas(values: List[Any], method: Method) -> Any:
    if method is Method.LIST:
        return tf.nest.map_structure(lambda *each: tf.stack(each), *values)
    total = tf.nest.map_structure(lambda *each: tf.add_n(each), *values)
    if method is Method.SUM:
        return total
    return tf.nest.map_structure(lambda one: one / len(values), total)


def plain(logs: Any) -> Dict[str, Any]:
    """Logs as numbers and arrays."""
    found = {name: value.numpy() for name, value in logs.items()}
    return {name: one.item() if one.ndim == 0 else one for name, one in found.items()}


def _arrays(outputs: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf.numpy(), outputs)

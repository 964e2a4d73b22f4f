"""``fit``: epochs of executions, and the callbacks between them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, NamedTuple, Tuple

import tensorflow as tf

from unified_ipu_tensorflow.emulated.keras.batches import Feed, read_feed
from unified_ipu_tensorflow.emulated.keras.pipelines import check_pipeline
from unified_ipu_tensorflow.emulated.keras.programs import Results, TrainingProgram
from unified_ipu_tensorflow.emulated.keras.replicas import ReplicaStates
from unified_ipu_tensorflow.emulated.keras.running import (
    Run,
    Triple,
    check_compiled,
    executions,
    plain,
    prepare,
    reduced,
)


class FitOptions(NamedTuple):
    """Arguments of ``fit`` beside the data."""

    batch_size: Any
    steps: Any
    epochs: int
    verbose: int
    callbacks: Any
    shuffle: bool


def run_fit(model: Any, data: Triple, options: FitOptions) -> Any:
    """Train for some epochs; see ``Extension.fit``.

    Args:
        model: Compiled.
        data: x, y and sample weights.
        options: The other arguments.

    Returns:
        The history.
    """
    check_compiled(model, "fit")
    feed = read_feed(
        *data, batch_size=options.batch_size, steps=options.steps, shuffle=options.shuffle
    )
    run = prepare(model, feed, options.epochs)
    program = _program(model, feed, _accumulation(model._ipu_state, run.steps.per_execution))
    watcher = tf.keras.callbacks.CallbackList(
        options.callbacks,
        add_history=True,
        add_progbar=options.verbose != 0,
        model=model,
        verbose=options.verbose,
        epochs=options.epochs,
        steps=run.steps.per_epoch,
    )
    model.stop_training = False
    watcher.on_train_begin()
    logs: Dict[str, Any] = {}
    for epoch, iterator in _epochs(feed, options.epochs):
        model.reset_metrics()
        watcher.on_epoch_begin(epoch)
        logs = _run_epoch(model, run, program, iterator, watcher)
        watcher.on_epoch_end(epoch, dict(logs))
        if model.stop_training:
            break
    watcher.on_train_end(dict(logs))
    return model.history


def _run_epoch(
    model: Any, run: Run, program: TrainingProgram, iterator: Any, watcher: Any
) -> Dict[str, Any]:
    state = model._ipu_state
    states = ReplicaStates(model, run.replicas)
    logs: Dict[str, Any] = {}
    for step, batches in executions(run, iterator):
        if not state.is_asynchronous:
            watcher.on_train_batch_begin(step)
        results = program.run(batches, states, replicas=run.replicas, fabric=run.fabric)
        results = reduced(results, state.metric_reduction)
        logs = plain(results[-1][-1])
        if state.is_asynchronous:
            _tell_every_step(watcher, step, results)
        else:
            watcher.on_train_batch_end(step + run.steps.per_execution - 1, logs)
        if model.stop_training:
            break
    return logs


def _program(model: Any, feed: Feed, accumulation: int) -> TrainingProgram:
    """The one that was made before, if nothing was set since."""
    state = model._ipu_state
    if "fit" not in state.programs:
        state.programs["fit"] = TrainingProgram(
            model,
            feed.dataset.element_spec,
            accumulation=accumulation,
            method=state.reduction,
            dtype=state.accumulation_dtype,
        )
    program: TrainingProgram = state.programs["fit"]
    return program


def _accumulation(state: Any, per_execution: int) -> int:
    """Micro-batches of a replica behind an update.

    Raises:
        ValueError: If a pipelined model has no such count.
        RuntimeError: If an execution does not hold whole updates.
    """
    if state.is_pipelined:
        if state.pipeline_accumulation is None:
            raise ValueError(
                "the model is pipelined, but `gradient_accumulation_steps_per_replica` has not "
                "been set through `set_pipelining_options()`"
            )
        count = int(state.pipeline_accumulation)
        check_pipeline(state.stages, state.schedule, count, training=True)
    else:
        count = state.accumulation or 1
    if per_execution % count:
        raise RuntimeError(
            f"`steps_per_execution` ({per_execution}) is not divisible by "
            f"`gradient_accumulation_steps_per_replica` ({count}); adjust one of them"
        )
    return count


def _epochs(feed: Feed, epochs: int) -> Iterator[Tuple[int, Any]]:
    iterator = iter(feed.dataset)
    for epoch in range(epochs):
        if epoch and feed.begins_anew:
            iterator = iter(feed.dataset)
        yield epoch, iterator


def _tell_every_step(watcher: Any, first: int, results: Results) -> None:
    """Callbacks that follow the outfeed: once for each step and replica."""
    for offset, replicas in enumerate(results):
        for logs in replicas:
            watcher.on_train_batch_begin(first + offset)
            watcher.on_train_batch_end(first + offset, plain(logs))

"""Evaluation and prediction that leave a model and all random generators as they were."""

from __future__ import annotations

from contextlib import contextmanager
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    cast,
)

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import HostMetric, Metric, Tree, split_batch
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.batches import Batch, Feed, select_rows, to_numpy
from unified_ipu_tensorflow.functions import runs_eagerly, structure_of
from unified_ipu_tensorflow.keras_generation import (
    is_keras,
    tf_variable,
    trainable_of,
    variables_of,
)
from unified_ipu_tensorflow.objectives import Objective
from unified_ipu_tensorflow.random_numbers import RandomLayers, check_graph

Pairs = Dict[str, Tuple[float, float]]


class _Found(NamedTuple):
    """Results of one forward pass: S and W as one vector, metrics, outputs."""

    loss: Optional[Any]
    metrics: Dict[str, Any]
    outputs: Any


class Evaluation:
    """Runs a model forward in evaluation mode, one trace for each form of a batch.

    Args:
        model: The user's, built.
        objective: From ``build_objective``.
        random_layers: Of the model; they draw from keys of their own and get their states back.
    """

    def __init__(self, model: Any, objective: Objective, *, random_layers: RandomLayers) -> None:
        self._model = model
        self._objective = objective
        self._random_layers = random_layers
        # Weights that are trained do not move in forward, all else might.
        trained = {id(tf_variable(v)) for v in trainable_of(model)}
        others = [tf_variable(v) for v in variables_of(model)]
        self._kept = [v for v in others if id(v) not in trained]
        self._forward = tf.function(self._run, autograph=False)
        self._traced: Set[Any] = set()

    def evaluate(self, batch: Batch, metrics: Mapping[str, Metric], *, seed: int) -> Pairs:
        """Loss and metrics of one micro-batch.

        Args:
            batch: From ``read_batch``.
            metrics: ``{name: (outputs, targets) -> (sum, weight)}``; rows of padding are left out
                before they see them.
            seed: Keys what draws in evaluation too.

        Returns:
            ``"loss"``, the metrics of an objective and the metrics asked for, as (sum, weight).
        """
        weight = self._objective.weight_before(batch)
        found = self._call(batch, weight, seed, has_loss=weight != 0.0, has_outputs=bool(metrics))
        pairs: Pairs = {"loss": (0.0, 0.0)}
        if found.loss is not None:
            total, counted = (float(number) for number in found.loss.numpy())
            # A mean over nothing is NaN, but its sum is 0.
            pairs["loss"] = (total, counted) if counted else (0.0, 0.0)
            for name, pair in found.metrics.items():
                numbers = pair.numpy()
                pairs[name] = (float(numbers[0]), float(numbers[1]))
        if metrics:
            pairs.update(measure(metrics, batch, found.outputs))
        return pairs

    def predict(self, batch: Batch, *, seed: int) -> Tree:
        """Outputs of one micro-batch as numpy arrays, padding included."""
        return to_numpy(self._call(batch, None, seed, has_loss=False, has_outputs=True).outputs)

    def _call(
        self, batch: Batch, weight: Optional[float], seed: int, *, has_loss: bool, has_outputs: bool
    ) -> _Found:
        takes_weight = has_loss and self._objective.takes_weight
        given = tf.constant(weight, tf.float64) if takes_weight else None
        asked = {"has_loss": has_loss, "has_outputs": has_outputs}
        feed = batch.feed()
        if runs_eagerly(self._model):
            return self._run(feed, given, self._seeds(seed), **asked)
        leaves = [(leaf.dtype, tuple(leaf.shape)) for leaf in tf.nest.flatten(feed.tree)]
        form = structure_of(feed), tuple(leaves), has_loss, has_outputs
        if form not in self._traced:
            self._trace(feed, given, seed, asked)
            self._traced.add(form)
        return cast("_Found", self._forward(feed, given, self._seeds(seed), **asked))

    def _trace(self, feed: Feed, given: Any, seed: int, asked: Mapping[str, bool]) -> None:
        """Look at the graph before it runs: it may draw what is not keyed yet, or cannot be."""
        count = self._random_layers.count
        graph = self._forward.get_concrete_function(feed, given, self._seeds(seed), **asked).graph
        check_graph(graph)
        self._random_layers.learn(graph)
        if self._random_layers.count != count:
            self._forward = tf.function(self._run, autograph=False)

    def _seeds(self, seed: int) -> Optional[Any]:
        count = self._random_layers.count
        return tf.constant(self._random_layers.seeds(seed)) if count else None

    def _run(
        self, feed: Feed, weight: Any, seeds: Any, *, has_loss: bool, has_outputs: bool
    ) -> _Found:
        with _unchanged([*self._kept, *self._random_layers.others]):
            self._random_layers.key(seeds)
            try:
                return self._pass(feed, weight, has_loss=has_loss, has_outputs=has_outputs)
            finally:
                self._random_layers.release()

    def _pass(self, feed: Feed, weight: Any, *, has_loss: bool, has_outputs: bool) -> _Found:
        loss, pairs, outputs = None, {}, None
        if has_loss:
            score = self._objective.score(self._model, feed, weight, training=False)
            total = tf.cast(score.value, tf.float64) * tf.cast(score.factor, tf.float64)
            loss = _pair(total, score.weight)
            pairs = {name: _pair(*pair) for name, pair in score.metrics.items()}
            outputs = score.outputs
        if has_outputs and outputs is None:
            outputs = self._objective.outputs(self._model, feed.tree)
        return _Found(loss, pairs, outputs if has_outputs else None)


@contextmanager
def _unchanged(variables: Sequence[Any]) -> Iterator[None]:
    """Put variables back that move in forward, in evaluation too (a counter, a seed)."""
    before: List[Any] = [variable.read_value() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before):
            variable.assign(value)


def measure(metrics: Mapping[str, Metric], batch: Batch, outputs: Any) -> Pairs:
    """Metrics of one micro-batch, without its rows of padding.

    Args:
        metrics: ``{name: (outputs, targets) -> (sum, weight)}``.
        batch: The micro-batch.
        outputs: Of the model, tensors.

    Raises:
        ConfigError: If a metric is one of Keras, or returns no pair.
    """
    targets = split_batch(batch.tree)[1]
    if batch.counted is not None:
        outputs = select_rows(outputs, batch.counted)
        targets = select_rows(targets, batch.counted)
    found: Pairs = {}
    for name, metric in metrics.items():
        if is_keras(metric):
            raise ConfigError(
                f"metric {name!r} is a {type(metric).__name__} of Keras, whose state cannot be "
                "added over ranks; pass a function (outputs, targets) -> (sum, weight), or "
                "unified_ipu.metrics.gathered(function) if it needs all rows at once"
            )
        if isinstance(metric, HostMetric):
            pair: Any = metric(to_numpy(outputs), to_numpy(targets))
        else:
            pair = metric(outputs, targets)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # noqa: PLR2004 a pair
            raise ConfigError(
                f"metric {name!r} is a {type(pair).__name__}; expected a pair (sum, weight), so "
                "that it can be added up over micro-batches and ranks"
            )
        found[name] = (float(np.asarray(pair[0])), float(np.asarray(pair[1])))
    return found


def _pair(total: Any, weight: Any) -> Any:
    return tf.stack([tf.reshape(tf.cast(n, tf.float64), []) for n in (total, weight)])

"""Forward and backward as graph functions: one trace for each form of a batch.

The concrete function of each form is kept; all numbers of a micro-batch come back as one vector.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import tensorflow as tf

from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.graph_calls import by_position
from unified_ipu_tensorflow.half_precision import widened
from unified_ipu_tensorflow.keras_generation import variables_of
from unified_ipu_tensorflow.objectives import Objective
from unified_ipu_tensorflow.random_numbers import RandomLayers, check_graph

Structure = Any

MANY_FORMS = 16
"""Forms of batches after which a user should know; a data set cut into equal batches has two."""

_log = logging.getLogger("unified_ipu.session")


class Pass(NamedTuple):
    """What forward and backward of one micro-batch gave.

    Args:
        gradients: Of the scaled S by each trained variable; None where it was not used.
        numbers: float64 ``[2 + 2 * metrics]``: S, W, then sum and weight of each metric.
        metrics: Names of the metrics.
    """

    gradients: List[Optional[Any]]
    numbers: Any
    metrics: Tuple[str, ...]


class _Form:
    """One traced form of a batch; what is not a tensor was noted while it was traced."""

    def __init__(self) -> None:
        self.call: Any = None
        self.used: List[bool] = []
        self.metrics: Tuple[str, ...] = ()


class GradientFunction:
    """Runs forward and backward of one model.

    Args:
        model: The user's.
        objective: From ``build_objective``.
        random_layers: Of the model.
        variables: Trained ones; no gradient is taken of any other.
        permutations: Axes that bring each gradient to the layout of its bucket, or None.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        random_layers: RandomLayers,
        variables: Sequence[Any],
        permutations: Sequence[Optional[Tuple[int, ...]]],
    ) -> None:
        self.traces = 0
        """How often a graph was made; as many as there are forms of batches."""
        self._model = model
        self._objective = objective
        self._random_layers = random_layers
        self._variables = list(variables)
        self._permutations = list(permutations)
        self._forms: Dict[Any, _Form] = {}
        self._scalars: Dict[float, Any] = {}
        self._has_run = False

    def __call__(self, feed: Any, weight: Optional[float], *, scale: float, seed: int) -> Pass:
        """Run one micro-batch.

        Args:
            feed: Its tensors and the mask of rows that count, a named tuple.
            weight: W where the user counts it on the host, else None.
            scale: What dS is multiplied with.
            seed: Keys the random layers.

        Raises:
            ConfigError: If the loss does not depend on what is trained.
        """
        extra = [self._scalar(scale)]
        if weight is not None:
            extra.append(tf.constant(weight, tf.float64))
        num_seeds = self._random_layers.count
        if num_seeds:
            extra.append(tf.constant(self._random_layers.seeds(seed)))
        if runs_eagerly(self._model):
            form = _Form()
            results = self._run_eagerly(form, feed, extra, has_weight=weight is not None)
        else:
            tensors = tf.nest.flatten(feed)
            form = self._form(feed, tensors, extra, has_weight=weight is not None)
            if self._random_layers.count != num_seeds:
                self._forms.clear()  # tracing showed what else has to be keyed
                return self(feed, weight, scale=scale, seed=seed)
            results = form.call([*_present(tensors), *extra])
        found = iter(results[1:])
        gradients = [next(found) if used else None for used in form.used]
        return Pass(gradients, results[0], form.metrics)

    def _scalar(self, value: float) -> Any:
        # The same factor nearly always; a new tensor costs ten microseconds.
        found = self._scalars.get(value)
        if found is None:
            self._scalars.clear()
            found = self._scalars[value] = tf.constant(value, tf.float64)
        return found

    def _form(self, feed: Any, tensors: List[Any], extra: List[Any], *, has_weight: bool) -> _Form:
        signature = tuple(None if t is None else (t.dtype, tuple(t.shape)) for t in tensors)
        # Evaluation may have shown meanwhile that there is more to key.
        key = (structure_of(feed), signature, has_weight, self._random_layers.count)
        form = self._forms.get(key)
        if form is None:
            form = self._trace(feed, tensors, extra, has_weight=has_weight)
            self._forms[key] = form
            if len(self._forms) == MANY_FORMS:
                _log.warning(
                    "batches came in %d shapes, and a graph was made for each, which takes long: "
                    "pad or bucket what differs in length",
                    MANY_FORMS,
                )
        return form

    def _trace(self, feed: Any, tensors: List[Any], extra: List[Any], *, has_weight: bool) -> _Form:
        form = _Form()
        num_leaves = sum(1 for tensor in tensors if tensor is not None)

        def run(*arguments: Any) -> List[Any]:
            self.traces += 1
            leaves = iter(arguments[:num_leaves])
            flat = [None if tensor is None else next(leaves) for tensor in tensors]
            traced = tf.nest.pack_sequence_as(feed, flat)
            rest = list(arguments[num_leaves:])
            return self._run(form, traced, rest, has_weight=has_weight)

        specs = [tf.TensorSpec(t.shape, t.dtype) for t in [*_present(tensors), *extra]]
        with _no_new_variables(self._model):
            concrete = tf.function(run, autograph=False).get_concrete_function(*specs)
        check_graph(concrete.graph)
        self._random_layers.learn(concrete.graph)
        form.call = by_position(concrete)
        return form

    def _run_eagerly(
        self, form: _Form, feed: Any, extra: List[Any], *, has_weight: bool
    ) -> List[Any]:
        if self._has_run:
            return self._run(form, feed, extra, has_weight=has_weight)
        self._has_run = True
        with _no_new_variables(self._model):
            return self._run(form, feed, extra, has_weight=has_weight)

    def _run(self, form: _Form, feed: Any, extra: List[Any], *, has_weight: bool) -> List[Any]:
        scale = extra[0]
        weight = extra[1] if has_weight else None
        self._random_layers.key(extra[-1] if self._random_layers.count else None)
        try:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self._variables)
                score = self._objective.score(self._model, feed, weight, training=True)
                value = widened(score.value)  # so that the loss scale fits in the seed of backward
        finally:
            self._random_layers.release()
        factor = tf.cast(score.factor, tf.float64)
        seed = tf.cast(factor * scale, value.dtype)
        gradients = tape.gradient(
            value,
            self._variables,
            output_gradients=tf.reshape(seed, tf.shape(value)),
        )
        if all(gradient is None for gradient in gradients):
            raise ConfigError(
                "the loss does not depend on any variable that is trained; look for stop_gradient, "
                "integers or numpy between model and loss, or for a layer that is not trainable"
            )
        form.used = [gradient is not None for gradient in gradients]
        form.metrics = tuple(score.metrics)
        numbers = [tf.cast(value, tf.float64) * factor, score.weight]
        numbers += [number for pair in score.metrics.values() for number in pair]
        vector = tf.stack([tf.reshape(tf.cast(n, tf.float64), ()) for n in numbers])
        return [vector, *self._dense(gradients)]

    def _dense(self, gradients: Sequence[Any]) -> List[Any]:
        found = []
        for gradient, variable, axes in zip(gradients, self._variables, self._permutations):
            if gradient is None:
                continue
            whole = gradient
            if isinstance(gradient, tf.IndexedSlices):  # of embeddings; a row may come twice
                rows = variable.shape[0]
                whole = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
            found.append(whole if axes is None else tf.transpose(whole, axes))
        return found


@contextmanager
def _no_new_variables(model: Any) -> Iterator[None]:
    known = len(variables_of(model))
    yield
    if len(variables_of(model)) != known:
        raise ConfigError(
            "the model made variables while it ran its first batch, which nobody trains; make all "
            "of them in build() or __init__, or run one batch through it before compile"
        )


def runs_eagerly(model: Any) -> bool:
    """Whether the user asked that no graph be made of this model."""
    return bool(getattr(model, "run_eagerly", False)) or tf.config.functions_run_eagerly()


def structure_of(tree: Any) -> Structure:
    """What a tree is made of, without its leaves; can be compared and hashed."""
    if isinstance(tree, dict):
        return ("dict", tuple((key, structure_of(tree[key])) for key in tree))
    if isinstance(tree, (tuple, list)):
        return (type(tree), tuple(structure_of(child) for child in tree))
    return tree is None


def _present(tensors: Sequence[Any]) -> List[Any]:
    return [tensor for tensor in tensors if tensor is not None]

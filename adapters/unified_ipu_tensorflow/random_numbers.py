"""Random layers keyed by micro-batch: their numbers are a function of the engine's key alone.

Keras 3 keeps the state of each ``SeedGenerator`` in a variable, which is set before forward. Keras
2 has no such state: there the masks of ``Dropout`` are drawn without state from the key. What
cannot be keyed is refused by name when it is traced.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import tensorflow as tf

from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.global_generator import StandIn
from unified_ipu_tensorflow.keras_generation import (
    is_keras,
    is_keras3,
    keras_of,
    tf_variable,
    variables_of,
)
from unified_ipu_tensorflow.names import all_layers

_RANGE = (1 << 31) - 2  # Keras 3 takes both words of a seed modulo this
_MASK = (1 << 64) - 1
_STATE = "seed_generator_state"
_STATEFUL = frozenset(
    {
        *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
        *("ParameterizedTruncatedNormal", "RandomShuffle", "Multinomial", "RandomGamma"),
        *("RandomPoisson", "RandomPoissonV2", "StatefulUniform", "StatefulUniformInt"),
        *("StatefulUniformFullInt", "StatefulStandardNormalV2", "StatefulTruncatedNormal"),
        *("StatefulRandomBinomial", "NonDeterministicInts"),
    }
)


class RandomLayers:
    """The random layers of a model, in the order of its variables or layers.

    Args:
        model: Built; layers that come later are not keyed.
        is_eager: Whether no graph is made of it, so that nothing can be looked up in one.
    """

    def __init__(self, model: Any, *, is_eager: bool = False) -> None:
        self._states = [tf_variable(v) for v in variables_of(model) if _is_state(v)]
        self.others: List[Any] = []
        """States of other models that this one's objective calls, as far as graphs showed them."""
        self._stand_in = StandIn(is_used=is_eager) if is_keras3(model) else None
        self._dropouts: List[_KeyedDropout] = []
        if is_keras(model) and not is_keras3(model):
            self._dropouts = [_KeyedDropout(layer) for layer in _dropouts_of(model)]

    @property
    def count(self) -> int:
        """How many seeds ``key`` takes; one more once it is seen that a model needs it."""
        own = 0 if self._stand_in is None else int(self._stand_in.is_used)
        return len(self._states) + len(self._dropouts) + own

    def learn(self, graph: Any) -> None:
        """Key the states of other models too that a traced function reads, as of a critic.

        Args:
            graph: Of a concrete function that runs the objective.
        """
        known = {id(state) for state in self._states}
        found = [v for v in graph.variables if _is_state(v) and id(v) not in known]
        self.others += found
        self._states += found

    def seeds(self, seed: int) -> Any:
        """Two words for each random layer.

        Args:
            seed: The engine's key of a micro-batch, ``0 <= seed < 2**63``.

        Returns:
            int64 numpy array ``[count, 2]``, below ``2**31 - 2``.

        Source: SplitMix64 (Steele, Lea and Flood, 2014), once for each word.
        """
        words, state = [], seed
        for _ in range(2 * self.count):
            state = (state + 0x9E3779B97F4A7C15) & _MASK
            mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
            words.append((mixed ^ (mixed >> 31)) % _RANGE)
        return np.array(words, np.int64).reshape(self.count, 2)

    def key(self, seeds: Optional[Any]) -> None:
        """Make all that layers draw from now on a function of the seeds.

        Args:
            seeds: As ``seeds`` returned them, or a tensor of them in a traced function; None if
                ``count`` is 0.

        Raises:
            ValueError: If there are not ``count`` of them.
        """
        rows = [] if seeds is None else tf.unstack(seeds)
        if len(rows) != self.count:
            raise ValueError(f"{len(rows)} seeds are given for {self.count} random layers")
        for state, row in zip(self._states, rows):
            state.assign(tf.cast(row, state.dtype))
        for dropout, row in zip(self._dropouts, rows[len(self._states) :]):
            dropout.key(row)
        if self._stand_in is not None:
            self._stand_in.install(rows[-1] if self._stand_in.is_used else None)

    def release(self) -> None:
        """Give layers back their own random numbers."""
        for dropout in self._dropouts:
            dropout.key(None)
        if self._stand_in is not None:
            self._stand_in.remove()

    def close(self) -> None:
        """Leave the layers as they were."""
        for dropout in self._dropouts:
            dropout.close()
        self._dropouts = []


def check_graph(graph: Any) -> None:
    """Refuse a traced function that draws numbers which cannot be keyed.

    Args:
        graph: Of a concrete function that runs the model in training.

    Raises:
        CapabilityError: If there is such an operation; it names the layer's scope.
    """
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += list(function.node_def)
    for node in nodes:
        if node.op in _STATEFUL:
            raise CapabilityError(
                NAME,
                f"{node.name} ({node.op}) draws random numbers from a generator of TensorFlow's "
                "own, which cannot follow the update and the micro-batch; draw them with "
                "keras.random and a keras.random.SeedGenerator of the layer (Keras 3), or use "
                "Dropout, whose masks are keyed in both generations",
            )


class _KeyedDropout:
    """Dropout of Keras 2 with masks that have no state.

    Args:
        layer: The user's; its own masks come back with ``close``, and where nothing is keyed.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._own_call = layer.call
        self._seed: Optional[Any] = None
        self._calls = 0
        layer.call = self._call

    def key(self, seed: Optional[Any]) -> None:
        """Draw from this seed, int64 ``[2]``; None lets the layer draw by itself."""
        self._seed, self._calls = seed, 0

    def close(self) -> None:
        """Undo what was done to the layer."""
        self._layer.call = self._own_call

    def _call(self, inputs: Any, training: Any = None) -> Any:
        rate = float(self._layer.rate)
        if self._seed is None or not isinstance(training, bool) or not training or not rate:
            return self._own_call(inputs, training=training)
        shape = self._layer._get_noise_shape(inputs)  # noqa: SLF001 that of SpatialDropout
        shape = tf.shape(inputs) if shape is None else tf.convert_to_tensor(shape)
        seed = tf.cast(self._seed, tf.int64) + tf.constant([0, self._calls], tf.int64)
        self._calls += 1  # a layer that is called again draws anew
        uniform = tf.random.stateless_uniform(shape, seed, dtype=inputs.dtype)
        kept = tf.broadcast_to(uniform >= tf.cast(rate, inputs.dtype), tf.shape(inputs))
        return tf.where(kept, inputs / (1.0 - rate), tf.zeros_like(inputs))


def _is_state(variable: Any) -> bool:
    # TensorFlow puts the scope before it, and the number of the output behind it.
    return str(getattr(variable, "name", "")).rpartition("/")[2].partition(":")[0] == _STATE


def _dropouts_of(model: Any) -> List[Any]:
    kind = keras_of(model).layers.Dropout
    found: Dict[int, Any] = {}
    for layer in [model, *(layer for _, layer in all_layers(model))]:
        if isinstance(layer, kind) and type(layer).call is kind.call:
            found[id(layer)] = layer
    return list(found.values())

"""Which phase layers are in that a user's objective calls without saying so."""

from __future__ import annotations

from typing import Any, Callable, List

import tensorflow as tf

from unified_ipu_tensorflow.keras_generation import is_keras, keras_of


class Phase:
    """Runs a function so that Keras layers in it are in training or not by default.

    Keras gives a layer the phase of the layer that calls it; here that is one of ours. So
    ``model(x)`` in an objective drops units in training and not in evaluation, and an explicit
    ``training=`` holds.

    Args:
        model: The user's; the phase of a callable that is not Keras' is its own affair.
    """

    def __init__(self, model: Any) -> None:
        self._layer = _phase_layer(model) if is_keras(model) else None
        self._dummy = tf.zeros([1])

    def run(self, function: Callable[[], Any], *, training: bool) -> Any:
        """Return what ``function`` returns, called in that phase; what it raises passes."""
        if self._layer is None:
            return function()
        found: List[Any] = []
        failed: List[Exception] = []

        def call() -> None:
            try:
                found.append(function())
            except Exception as error:  # noqa: BLE001 raised below, where Keras does not reword it
                failed.append(error)

        self._layer.function = call
        try:
            self._layer(self._dummy, training=training)
        finally:
            self._layer.function = None
        if failed:
            raise failed[0]
        return found[-1]


def _phase_layer(model: Any) -> Any:
    layers: Any = keras_of(model).layers

    class PhaseLayer(layers.Layer):  # type: ignore[misc]  # known only when Keras is imported
        """Calls a function, from which layers learn the phase."""

        function: Any = None

        def call(self, nothing: Any, training: bool = False) -> Any:
            """Call it; what it returns goes another way, since it need not be tensors."""
            del training
            self.function()
            return nothing

    # As a part of ours, the model forgets the losses of its last forward pass when we are called.
    layer = PhaseLayer(dtype="float32")
    layer.model = model
    return layer

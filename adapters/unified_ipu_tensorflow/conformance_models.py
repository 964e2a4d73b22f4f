"""Small Keras models that the conformance kit trains; imports TensorFlow."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu_tensorflow.keras_generation import is_keras3

keras: Any = tf.keras


def dense(name: str, weight: Any, bias: Optional[Any], dtype: str) -> Tuple[Any, Sequence[Any]]:
    """A layer, and the values it has to get once it is built; ``weight`` is ``[in, out]``."""
    values = [np.asarray(weight)] if bias is None else [np.asarray(weight), np.asarray(bias)]
    units = values[0].shape[1]
    layer = keras.layers.Dense(units, use_bias=bias is not None, name=name, dtype=policy_of(dtype))
    return layer, values


def policy_of(dtype: str) -> Optional[str]:
    """What a layer is made with; float32 leaves the choice to the policy of a session's scope."""
    return None if dtype == "float32" else dtype


def has_keras3() -> bool:
    """Whether ``tf.keras`` is Keras 3."""
    return bool(is_keras3(keras.losses.MeanSquaredError()))


def keras_loss(name: str, **options: Any) -> Any:
    """A loss of Keras that computes in float64, which Keras 3 has to be told."""
    if has_keras3():
        options["dtype"] = "float64"
    return getattr(keras.losses, name)(**options)


def in_device_type(loss: Any, dtype: str) -> Any:
    """The same loss in that type if it is one of Keras 3, which has a type of its own."""
    if isinstance(loss, keras.losses.Loss) and has_keras3():
        return type(loss).from_config({**loss.get_config(), "dtype": dtype})
    return loss


def stacked(size: int, dtype: str, layers: Sequence[Any]) -> Any:
    """A functional model of layers in a row over inputs ``[rows, size]``; some with values."""
    inputs = outputs = keras.Input((size,), dtype=dtype)
    pairs = [one if isinstance(one, tuple) else (one, None) for one in layers]
    for layer, _ in pairs:
        outputs = layer(outputs)
    for layer, values in pairs:
        if values is not None:
            layer.set_weights(values)
    return keras.Model(inputs, outputs)


def mlp(weights: Sequence[Any], biases: Sequence[Any], dtype: str) -> Any:
    """Dense layers ``layer0``, ``layer1``, ... with tanh between."""
    layers: List[Any] = []
    for index, (weight, bias) in enumerate(zip(weights, biases)):
        layers.append(dense(f"layer{index}", weight, bias, dtype))
        layers.append(keras.layers.Activation("tanh", dtype=policy_of(dtype)))
    return stacked(len(weights[0]), dtype, layers[:-1])


def _weight(layer: Any, name: str, value: float) -> Any:
    start = keras.initializers.Constant(value)
    return layer.add_weight(name=name, shape=(1,), dtype=layer.dtype, initializer=start)


class Branches(keras.Model):  # type: ignore[misc]  # whatever tf.keras is
    """Uses ``a`` or ``b``, by what it reads in the data: so it cannot be traced."""

    def __init__(self, values: Dict[str, float], dtype: str) -> None:
        super().__init__(dtype=dtype)
        self.chosen = {name: _weight(self, name, value) for name, value in values.items()}
        self.run_eagerly = True

    def call(self, x: Any) -> Any:
        """``value * (a or b) + frozen``."""
        name = "b" if bool(x[0, 1]) else "a"
        return x[:, :1] * self.chosen[name] + self.chosen["frozen"]


class Scale(keras.layers.Layer):  # type: ignore[misc]  # whatever tf.keras is
    """``x * weight``, the weight its own or that of another."""

    def __init__(
        self, name: str, dtype: str, value: float = 1.0, twin: Optional[Scale] = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.weight: Any = _weight(self, "weight", value) if twin is None else twin.weight

    def call(self, x: Any) -> Any:
        """The product."""
        return x * self.weight


def tied(value: float, dtype: str) -> Any:
    """Two layers with one weight."""
    first = Scale("first", dtype, value)
    return stacked(1, dtype, [first, Scale("second", dtype, twin=first)])


def read(model: Any, names: Sequence[str]) -> Dict[str, Any]:
    """Values of a model's variables by the ends of Keras' own names."""
    found = {}
    for variable in model.weights:
        path = str(getattr(variable, "path", variable.name)).partition(":")[0]
        for name in names:
            if path == name or path.endswith(f"/{name}"):
                found[name] = np.array(variable.numpy())
    return found

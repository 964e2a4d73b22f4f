"""``ui.optim`` as Keras optimizers that a device can run, with PyTorch's arithmetic.

Graphcore's Keras takes any optimizer that leaves ``minimize`` alone. Keras' own ones put the rate
into the velocity and epsilon elsewhere; these do not. Slots have the names PyTorch gives them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Mapping, Sequence, Tuple

import tensorflow as tf

from unified_ipu.adapter import optim
from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.keras_generation import is_keras3, tf_variable

Settings = Any
Slots = Dict[str, Any]


def slot_names(settings: Settings) -> Tuple[str, ...]:
    """Slots that one variable has."""
    if isinstance(settings, optim.Adam):
        return ("step", "exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if settings.momentum else ()


def check_settings(settings: Settings) -> None:
    """Refuse what the first step of a momentum needs to be told.

    Raises:
        CapabilityError: If there is dampening.
    """
    if isinstance(settings, optim.SGD) and settings.dampening:
        raise CapabilityError(
            NAME,
            f"SGD(dampening={settings.dampening}) leaves the first step undamped, which a device "
            "program cannot tell from the others; set dampening=0",
        )


def update(settings: Settings, variable: Any, gradient: Any, rate: Any, slots: Slots) -> Any:
    """One step of one variable, in operations that compile for devices.

    Args:
        settings: Of ``ui.optim``.
        variable: Of TensorFlow.
        gradient: Dense, of its shape.
        rate: Scalar tensor of its type.
        slots: Of this variable, by name.

    Returns:
        The last operation.
    """
    is_decoupled = isinstance(settings, optim.AdamW)
    if settings.weight_decay and is_decoupled:
        variable.assign(variable * (1.0 - rate * settings.weight_decay))
    elif settings.weight_decay:
        gradient = gradient + settings.weight_decay * variable
    if isinstance(settings, optim.Adam):
        return _adam(settings, variable, gradient, rate, slots)
    if settings.momentum:
        buffer = slots["momentum_buffer"]
        buffer.assign(settings.momentum * buffer + gradient)
        gradient = gradient + settings.momentum * buffer if settings.nesterov else buffer
    return variable.assign_sub(rate * gradient, read_value=False)


def _adam(settings: Settings, variable: Any, gradient: Any, rate: Any, slots: Slots) -> Any:
    beta1, beta2 = settings.betas
    step, first, second = slots["step"], slots["exp_avg"], slots["exp_avg_sq"]
    step.assign_add(1.0)
    first.assign(beta1 * first + (1.0 - beta1) * gradient)
    second.assign(beta2 * second + (1.0 - beta2) * gradient * gradient)
    # 1 - beta^t, where float32 would lose digits of beta close to 1.
    count = tf.cast(step, variable.dtype)
    correction1 = -tf.math.expm1(count * math.log(beta1)) if beta1 else 1.0
    correction2 = -tf.math.expm1(count * math.log(beta2)) if beta2 else 1.0
    divisor = tf.sqrt(second) / tf.sqrt(correction2) + settings.eps
    return variable.assign_sub(rate / correction1 * first / divisor, read_value=False)


class SlotBook:
    """Slots of some variables, made at once.

    Args:
        settings: Of ``ui.optim``.
        variables: The model's own, by name.
    """

    def __init__(self, settings: Settings, variables: Mapping[str, Any]) -> None:
        self.by_name: Dict[str, Any] = {}
        self._of: Dict[int, Slots] = {}
        for name, own in variables.items():
            variable = tf_variable(own)
            slots: Slots = {}
            for slot in slot_names(settings):
                shape = () if slot == "step" else variable.shape
                dtype = tf.float32 if slot == "step" else variable.dtype
                slots[slot] = tf.Variable(tf.zeros(shape, dtype), trainable=False)
                self.by_name[f"{name}/{slot}"] = slots[slot]
            self._of[id(variable)] = slots

    def of(self, variable: Any) -> Slots:
        """Slots of one variable."""
        return self._of[id(tf_variable(variable))]

    def clear(self) -> None:
        """Set all to 0, as if no step had been made."""
        for slot in self.by_name.values():
            slot.assign(tf.zeros_like(slot))


def keras_optimizer(settings: Settings, slots: SlotBook) -> Any:
    """Return an optimizer of the Keras that is here.

    Args:
        settings: Of ``ui.optim``.
        slots: It works on.
    """
    base: Any = tf.keras.optimizers.Optimizer
    is_new = bool(is_keras3(tf.keras.optimizers.SGD()))
    return (_of_keras3 if is_new else _of_keras2)(base, settings, slots)


def _of_keras3(base: Any, settings: Settings, book: SlotBook) -> Any:
    class Exact(base):  # type: ignore[misc]  # known only when Keras is imported
        """One of ``ui.optim``."""

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            """One step of one variable."""
            plain = tf_variable(variable)
            rate = tf.cast(learning_rate, plain.dtype)
            update(settings, plain, gradient, rate, book.of(plain))

    return Exact(learning_rate=settings.lr, name=type(settings).__name__.lower())


def _of_keras2(base: Any, settings: Settings, book: SlotBook) -> Any:
    class Exact(base):  # type: ignore[misc]  # known only when Keras is imported
        """One of ``ui.optim``."""

        def __init__(self) -> None:
            super().__init__(name=type(settings).__name__)
            self._set_hyper("learning_rate", settings.lr)

        def _create_slots(self, var_list: Sequence[Any]) -> None:
            del var_list

        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            del apply_state
            rate = self._get_hyper("learning_rate", var.dtype.base_dtype)
            return update(settings, var, grad, rate, book.of(var))

        def get_config(self) -> Dict[str, Any]:
            """Settings."""
            return dataclasses.asdict(settings)

    return Exact()

"""What differs between the optimizers of Keras 2 and Keras 3, behind one face."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.keras_generation import tf_variable

_PLAIN = (bool, int, float, str)


class Keras3State:
    """An optimizer of Keras 3.

    Args:
        optimizer: The user's.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._held: Optional[tf.Variable] = None

    def built_on(self) -> Optional[List[Any]]:
        """Variables it was built on, or None."""
        if not self._optimizer.built:
            return None
        return list(self._optimizer._trainable_variables)  # noqa: SLF001 Keras has no public way

    def lend_rate(self, schedule: Any) -> Tuple[Any, Any]:
        """Hold the rate where there is a schedule; the user's own rate, and the schedule."""
        own = self._optimizer._learning_rate  # noqa: SLF001 the property computes a schedule's rate
        if isinstance(own, tf.Variable) or hasattr(own, "assign"):
            return (None, None) if schedule is None else (float(own.numpy()), schedule)
        _check_rate(own, schedule)
        self._held = held = tf.Variable(0.0, trainable=False, dtype=tf.float32)
        self._optimizer.learning_rate = held.read_value
        return own, own

    def return_rate(self, own: Any) -> None:
        """Undo ``lend_rate``."""
        if own is not None:
            self._optimizer.learning_rate = own

    def rate(self) -> tf.Variable:
        """What the step reads as the rate."""
        if self._held is not None:
            return self._held
        return tf_variable(self._optimizer._learning_rate)  # noqa: SLF001 Keras has no public way

    def build(self, variables: Sequence[Any]) -> None:
        """Make all slots."""
        if not self._optimizer.built:
            self._optimizer.build(list(variables))

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
        """Step these variables."""
        self._optimizer.apply(list(gradients), list(variables))

    def iterations(self) -> tf.Variable:
        """The counter of steps."""
        return tf_variable(self._optimizer.iterations)

    def position(self, updates: int) -> tf.Tensor:
        """A number of updates as the optimizer would hand it to a schedule."""
        return tf.constant(updates, tf.int64)

    def variables(self) -> List[tf.Variable]:
        """All of the optimizer's own."""
        return [tf_variable(variable) for variable in self._optimizer.variables]

    def slots(self, names: Sequence[str], variables: Sequence[Any]) -> Dict[str, tf.Variable]:
        """Slots by ``<name>/<slot>``: the lists of the optimizer with one entry a variable."""
        order = {id(tf_variable(own)): name for name, own in zip(names, variables)}
        owners = [order.get(id(tf_variable(own))) for own in self.built_on() or ()]
        own_variables = {id(variable) for variable in self.variables()}
        found: Dict[str, Dict[str, tf.Variable]] = {name: {} for name in names}
        for attribute, value in vars(self._optimizer).items():
            if not isinstance(value, (list, tuple)) or len(value) != len(owners):
                continue
            for owner, entry in zip(owners, value):
                slot = None if not hasattr(entry, "assign") else tf_variable(entry)
                if owner is not None and id(slot) in own_variables and attribute != "_variables":
                    found[owner][attribute.strip("_")] = slot
        return {
            f"{name}/{slot}": variable
            for name, slots in found.items()
            for slot, variable in slots.items()
        }

    def settings(self) -> Dict[str, Any]:
        """Plain hyper-parameters, the rate apart."""
        return _plain_attributes(self._optimizer)


class Keras2State:
    """An optimizer of Keras 2, of the kind that has ``get_slot``.

    Args:
        optimizer: The user's.

    Raises:
        ConfigError: If its rate decays by the setting ``decay``.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._held: Optional[tf.Variable] = None
        decay = getattr(optimizer, "_initial_decay", 0.0)
        # Nadam calls by that name what decays its momentum, not its rate.
        if decay and "Nadam" not in {kind.__name__ for kind in type(optimizer).__mro__}:
            raise ConfigError(
                f"{type(optimizer).__qualname__}(decay={decay}) changes the rate inside a call; "
                "use the schedule tf.keras.optimizers.schedules.InverseTimeDecay(learning_rate, "
                f"1, {decay})"
            )

    def built_on(self) -> Optional[List[Any]]:
        """None: it takes any variable at any time."""

    def lend_rate(self, schedule: Any) -> Tuple[Any, Any]:
        """Hold the rate where there is a schedule; the user's own rate, and the schedule."""
        own = self._optimizer.learning_rate
        if isinstance(own, tf.Variable):
            return (None, None) if schedule is None else (float(own.numpy()), schedule)
        _check_rate(own, schedule)
        self._held = held = tf.Variable(0.0, trainable=False, dtype=tf.float32)
        self._optimizer.learning_rate = held.read_value
        return own, own

    def return_rate(self, own: Any) -> None:
        """Undo ``lend_rate``."""
        if own is not None:
            self._optimizer.learning_rate = own

    def rate(self) -> tf.Variable:
        """What the step reads as the rate."""
        return self._optimizer.learning_rate if self._held is None else self._held

    def build(self, variables: Sequence[Any]) -> None:
        """Make all slots."""
        self._optimizer._create_all_weights(list(variables))  # noqa: SLF001 Keras has no public way

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
        """Step these variables."""
        self._optimizer.apply_gradients(
            list(zip(gradients, variables)), experimental_aggregate_gradients=False
        )

    def iterations(self) -> tf.Variable:
        """The counter of steps."""
        return self._optimizer.iterations

    def position(self, updates: int) -> tf.Tensor:
        """A number of updates as the optimizer would hand it to a schedule."""
        return tf.constant(updates, tf.float32)

    def variables(self) -> List[tf.Variable]:
        """All of the optimizer's own."""
        return list(self._optimizer.weights)

    def slots(self, names: Sequence[str], variables: Sequence[Any]) -> Dict[str, tf.Variable]:
        """Slots by ``<name>/<slot>``."""
        return {
            f"{name}/{slot}": self._optimizer.get_slot(variable, slot)
            for name, variable in zip(names, variables)
            for slot in self._optimizer.get_slot_names()
        }

    def settings(self) -> Dict[str, Any]:
        """Plain hyper-parameters, the rate apart."""
        hyper = {
            name: float(getattr(self._optimizer, name))
            for name in self._optimizer._hyper  # noqa: SLF001 Keras lists them nowhere else
            if name != "learning_rate"
        }
        return {**_plain_attributes(self._optimizer), **hyper}


def _check_rate(own: Any, schedule: Any) -> None:
    if not any(kind.__name__ == "LearningRateSchedule" for kind in type(own).__mro__):
        raise ConfigError(
            f"the optimizer's learning_rate is a {type(own).__qualname__}; expected a number or a "
            "LearningRateSchedule (a callable goes into schedule= of compile, as a factor)"
        )
    if schedule is not None:
        raise ConfigError(
            f"the optimizer has the schedule {type(own).__qualname__}, and schedule= gives "
            f"{type(schedule).__qualname__}; leave one of them out"
        )


def _plain_attributes(optimizer: Any) -> Dict[str, Any]:
    return {
        name: value
        for name, value in vars(optimizer).items()
        if not name.startswith("_") and isinstance(value, _PLAIN) and name not in {"name", "built"}
    }

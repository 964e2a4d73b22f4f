"""What drives the weights: ``ui.optim`` made exact, Keras optimizers checked, what is trained."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence

import tensorflow as tf

from unified_ipu.adapter import choose_trainable, optim
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.keras_generation import is_keras, tf_variable
from unified_ipu_tensorflow.keras_optimizers import KerasOptimizer
from unified_ipu_tensorflow.updates import ExactOptimizer

_FULL = (tf.float32, tf.float64)


class Optimizer(Protocol):
    """What a replica needs of an optimizer of any kind."""

    trained: Dict[str, tf.Variable]
    """Trained variables by name; gradients and flags come in this order."""

    def apply(
        self,
        gradients: Sequence[Optional[tf.Tensor]],
        used: Sequence[bool],
        *,
        scale: float = 1.0,
        lr_factor: float = 1.0,
    ) -> None:
        """Step with ``scale`` times the gradients and ``lr_factor`` times every rate.

        A variable whose ``used`` is False stays as it is, and so do its slots.
        """
        ...

    def end_call(self, num_updates: int) -> None:
        """Step the schedule, if there is one, once for each update that happened."""
        ...

    def learning_rates(self) -> List[float]:
        """Rates now, one a group, without a factor."""
        ...

    def slots(self) -> Dict[str, tf.Variable]:
        """Slots that exist now, by ``<name of the variable>/<slot>``."""
        ...

    def make_slot(self, name: str) -> Optional[tf.Variable]:
        """Make the slot of that name, or return None if this optimizer has none like it."""
        ...

    def forget_slots(self) -> None:
        """Drop the slots that a checkpoint may lack."""
        ...

    def scalars(self) -> Dict[str, Any]:
        """State that is no slot, as JSON values."""
        ...

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over what ``scalars`` gave; another kind is refused before anything changes."""
        ...

    def close(self) -> None:
        """Leave the user's optimizer as it can be used elsewhere."""
        ...


def is_schedule(schedule: Any) -> bool:
    """Whether an object is a learning-rate schedule of Keras, which gives rates, not factors."""
    names = {kind.__name__ for kind in type(schedule).__mro__}
    return is_keras(schedule) and "LearningRateSchedule" in names


def build_optimizer(
    settings: Any, variables: Mapping[str, Any], trainable: Any, schedule: Any = None
) -> Optional[Optimizer]:
    """Return what carries out the updates of a program.

    Args:
        settings: A Keras optimizer, a value of ``ui.optim``, or None.
        variables: The model's own trainable variables by name, each once.
        trainable: As ``choose_trainable``.
        schedule: A Keras ``LearningRateSchedule`` for a Keras optimizer, or None.

    Returns:
        None without ``settings``: evaluation only.

    Raises:
        ConfigError: If optimizer, schedule or variables cannot be driven.
    """
    if schedule is not None and not is_schedule(schedule):
        raise ConfigError(
            f"schedule is a {type(schedule).__qualname__}; expected a LearningRateSchedule of "
            "Keras or a callable(update) -> factor"
        )
    if settings is None:
        return None
    if isinstance(settings, (optim.SGD, optim.Adam)):
        if schedule is not None:
            raise ConfigError(
                f"{type(schedule).__qualname__} gives learning rates, and {type(settings).__name__}"
                " of unified_ipu.optim has one already; pass a callable(update) -> factor, or a "
                "Keras optimizer"
            )
        chosen = {name: variables[name] for name in _choose(trainable, variables)}
        _check_variables(chosen)
        return ExactOptimizer(settings, chosen)
    if not is_keras(settings) or not hasattr(settings, "apply_gradients"):
        raise ConfigError(
            f"optimizer is a {type(settings).__qualname__}; expected a Keras optimizer or one of "
            "unified_ipu.optim"
        )
    built_on = KerasOptimizer.built_on(settings)
    if built_on is None:
        names = _choose(trainable, variables)
    else:
        names = _names_of(built_on, variables, trainable)
    chosen = {name: variables[name] for name in names}
    _check_variables(chosen)
    return KerasOptimizer(settings, chosen, schedule)


def _choose(trainable: Any, variables: Mapping[str, Any]) -> List[str]:
    if not variables:
        raise ConfigError(
            "the model has no trainable variable; set trainable = True on what should be trained, "
            "or pass optimizer=None to evaluate only"
        )
    return choose_trainable(trainable, list(variables), kind="variable")


def _names_of(built_on: Sequence[Any], variables: Mapping[str, Any], trainable: Any) -> List[str]:
    """Names of the variables that a Keras optimizer was built on.

    Raises:
        ConfigError: If it was built on others too, or ``trainable=`` says what is trained.
    """
    if trainable is not None:
        raise ConfigError(
            "trainable= goes with an optimizer that has no variables yet; this one was built "
            "before and trains what it was built on: leave trainable= out or make a new optimizer"
        )
    driven = {id(tf_variable(variable)) for variable in built_on}
    names = [name for name, own in variables.items() if id(tf_variable(own)) in driven]
    if len(names) != len(driven):
        raise ConfigError(
            f"the optimizer was built on {len(driven)} variables, of which {len(names)} are "
            "trainable variables of this model; make a new optimizer for it"
        )
    return names


def _check_variables(variables: Mapping[str, Any]) -> None:
    for name, own in variables.items():
        dtype = tf_variable(own).dtype
        if dtype not in _FULL:
            raise ConfigError(
                f"variable {name!r} has dtype {dtype.name}; keep trained variables in float32 or "
                "float64, they are the master weights (precision.compute sets the type of forward)"
            )

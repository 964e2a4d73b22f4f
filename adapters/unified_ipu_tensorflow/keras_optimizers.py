"""A Keras optimizer of either generation: its step traced once, its state in and out by name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.graph_calls import GraphCall, by_position
from unified_ipu_tensorflow.keras_generation import is_keras3, tf_variable
from unified_ipu_tensorflow.keras_state import Keras2State, Keras3State
from unified_ipu_tensorflow.saved_state import check_kind, check_parameters

_REFUSED = {
    "clipnorm": "set update.clip_norm in the plan, which clips by the norm over all replicas",
    "global_clipnorm": "set update.clip_norm in the plan",
    "clipvalue": "set update.clip_norm in the plan",
    "gradient_accumulation_steps": "set batch.accumulation_per_replica in the plan",
    "loss_scale_factor": "set precision.loss_scale in the plan",
    "use_ema": "it would replace the weights behind the engine's back",
    "inner_optimizer": "set precision.loss_scale in the plan, and pass the optimizer inside",
}
_OF_KERAS = ("keras", "tf_keras", "tensorflow")
_GRAPHS = 8  # for sets of used variables; further ones run operation by operation


class KerasOptimizer:
    """Steps a Keras optimizer; see ``Optimizer``.

    The learning rate of a schedule is read at the start of a call and held for it, as that of any
    other optimizer is, so the user's optimizer is lent a constant rate until ``close``.

    Args:
        optimizer: Of Keras 3, or of Keras 2 as it was up to TensorFlow 2.10.
        variables: The model's own, by name.
        schedule: A ``LearningRateSchedule`` in place of the optimizer's rate, or None.

    Raises:
        ConfigError: If the optimizer does by itself what the plan decides, or keeps state that
            belongs to no variable.
    """

    def __init__(self, optimizer: Any, variables: Mapping[str, Any], schedule: Any) -> None:
        self._kind = type(optimizer).__qualname__
        _check_settings(optimizer)
        # Another's class may assign a gradient to a variable, which would then be the very memory
        # that ranks reduce in; no class of Keras does.
        self._is_of_keras = type(optimizer).__module__.partition(".")[0] in _OF_KERAS
        self.trained: Dict[str, tf.Variable] = {
            name: tf_variable(variable) for name, variable in variables.items()
        }
        self._variables = list(variables.values())
        state = _state_of(optimizer)
        self._state = state
        self._lent, self._schedule = state.lend_rate(schedule)
        self._rate = state.rate()
        state.build(self._variables)
        self._slots = state.slots(list(variables), self._variables)
        self._numbers = self._find_numbers()
        self._position = int(state.iterations().numpy())
        self._follow_schedule()
        self._calls: Dict[Tuple[Tuple[bool, ...], bool], GraphCall] = {}

    @staticmethod
    def built_on(optimizer: Any) -> Optional[List[Any]]:
        """Variables that an optimizer was built on, or None if it takes what it is given.

        Raises:
            ConfigError: If it is of a generation between the two that are known.
        """
        _check_settings(optimizer)
        built_on: Optional[List[Any]] = _state_of(optimizer).built_on()
        return built_on

    def apply(
        self,
        gradients: Sequence[Optional[tf.Tensor]],
        used: Sequence[bool],
        *,
        scale: float = 1.0,
        lr_factor: float = 1.0,
    ) -> None:
        """Step every variable that was used, and count an iteration."""
        active = tuple(
            is_used and gradient is not None for is_used, gradient in zip(used, gradients)
        )
        if not any(active):
            return
        tensors = [gradient for gradient, is_active in zip(gradients, active) if is_active]
        if scale != 1.0:
            tensors.append(tf.constant(scale, tf.float64))
        with self._scaled_rate(lr_factor):
            self._call(active, is_scaled=scale != 1.0)(tensors)

    def _call(self, active: Tuple[bool, ...], *, is_scaled: bool) -> GraphCall:
        """The graph of a step, or the step itself where there are too many graphs."""
        found = self._calls.get((active, is_scaled))
        if found is None:
            step = self._step_of(active, is_scaled=is_scaled)
            if len(self._calls) >= _GRAPHS:
                return lambda tensors: step(*tensors)
            trained = [own for own, is_active in zip(self.trained.values(), active) if is_active]
            specs = [tf.TensorSpec(own.shape, own.dtype) for own in trained]
            if is_scaled:
                specs.append(tf.TensorSpec((), tf.float64))
            graph = tf.function(step, autograph=False).get_concrete_function(*specs)
            found = self._calls[active, is_scaled] = by_position(graph)
        return found

    def _step_of(self, active: Tuple[bool, ...], *, is_scaled: bool) -> Callable[..., None]:
        variables = [own for own, is_active in zip(self._variables, active) if is_active]

        def step(*tensors: tf.Tensor) -> None:
            gradients = list(tensors[: len(variables)])
            if is_scaled:  # otherwise no pass over the gradients is made
                gradients = [
                    gradient * tf.cast(tensors[-1], gradient.dtype) for gradient in gradients
                ]
            elif not self._is_of_keras:
                gradients = [tf.raw_ops.DeepCopy(x=gradient) for gradient in gradients]
            self._state.apply(gradients, variables)

        return step

    @contextmanager
    def _scaled_rate(self, factor: float) -> Iterator[None]:
        if factor == 1.0:
            yield
            return
        rate = self._rate.numpy()
        self._rate.assign(float(rate) * factor)
        try:
            yield
        finally:
            self._rate.assign(rate)

    def end_call(self, num_updates: int) -> None:
        """Move on in the schedule."""
        self._position += num_updates
        self._follow_schedule()

    def _follow_schedule(self) -> None:
        if self._schedule is not None:
            self._rate.assign(self._schedule(self._state.position(self._position)))

    @property
    def has_schedule(self) -> bool:
        """Whether a schedule decides the rate."""
        return self._schedule is not None

    @property
    def rate(self) -> tf.Variable:
        """What the step reads as the rate."""
        return self._rate

    def learning_rates(self) -> List[float]:
        """The one rate, in the float32 that Keras keeps it in."""
        return [float(self._rate.numpy())]

    def slots(self) -> Dict[str, tf.Variable]:
        """All slots; Keras makes them when the optimizer is built."""
        return dict(self._slots)

    def make_slot(self, name: str) -> None:
        """Return None: there are no others."""
        del name

    def forget_slots(self) -> None:
        """Do nothing: every checkpoint of this optimizer has all slots."""

    def scalars(self) -> Dict[str, Any]:
        """Kind, settings, counters and rate; the kind and the position of the schedule."""
        found: Dict[str, Any] = {
            "optimizer": {
                "kind": self._kind,
                "parameters": list(self.trained),
                "settings": self._state.settings(),
                "iterations": int(self._state.iterations().numpy()),
                "numbers": [float(number.numpy()) for number in self._numbers],
                "learning_rate": float(self._rate.numpy()),
            }
        }
        if self._schedule is not None:
            found["schedule_kind"] = type(self._schedule).__qualname__
            found["schedule"] = {"position": self._position}
        return found

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over counters, rate and the position of the schedule.

        Raises:
            ConfigError: If they are of another optimizer, of other settings or variables.
        """
        saved = scalars.get("optimizer") or {}
        check_kind("optimizer", saved.get("kind"), self._kind)
        own = None if self._schedule is None else type(self._schedule).__qualname__
        check_kind("scheduler", scalars.get("schedule_kind"), own)
        check_parameters(saved.get("parameters", ()), list(self.trained))
        self._check_same_settings(saved["settings"])
        self._state.iterations().assign(saved["iterations"])
        for number, value in zip(self._numbers, saved["numbers"]):
            number.assign(np.asarray(value, number.dtype.as_numpy_dtype))
        self._rate.assign(saved["learning_rate"])
        if self._schedule is not None:
            self._position = int(scalars["schedule"]["position"])

    def close(self) -> None:
        """Give the user's optimizer its own rate or schedule back."""
        self._state.return_rate(self._lent)

    def _check_same_settings(self, saved: Mapping[str, Any]) -> None:
        # They are constants of Keras' Python code, also of what it traced: not to be taken over.
        own = self._state.settings()
        for name in sorted({*own, *saved}):
            if own.get(name) != saved.get(name):
                raise ConfigError(
                    f"the state was saved with {self._kind}({name}={saved.get(name)!r}), this "
                    f"program has {name}={own.get(name)!r}; make the optimizer with the saved "
                    "value"
                )

    def _find_numbers(self) -> List[tf.Variable]:
        known = {id(slot) for slot in self._slots.values()}
        known.update((id(self._rate), id(self._state.iterations())))
        others = [variable for variable in self._state.variables() if id(variable) not in known]
        for variable in others:
            if variable.shape.rank:
                raise ConfigError(
                    f"{self._kind} keeps a state of shape {list(variable.shape)}, "
                    f"{variable.name!r}, that belongs to no variable of the model; use one that "
                    "keeps its slots a variable, as SGD, RMSprop, Adagrad, Adam and AdamW do"
                )
        return others


def _state_of(optimizer: Any) -> Any:
    if is_keras3(optimizer):
        return Keras3State(optimizer)
    if hasattr(optimizer, "get_slot_names"):
        return Keras2State(optimizer)
    raise ConfigError(
        f"{type(optimizer).__qualname__} is an optimizer as Keras had them in TensorFlow 2.11 to "
        "2.15 only; use the one of the same name in tf.keras.optimizers.legacy"
    )


def _check_settings(optimizer: Any) -> None:
    kind = type(optimizer).__qualname__
    for name, instead in _REFUSED.items():
        value = getattr(optimizer, name, None)
        if value is not None and value is not False:
            shown = "" if name == "inner_optimizer" else f"({name}={value!r})"
            raise ConfigError(
                f"{kind}{shown} would act on each replica by itself or a second time; {instead}"
            )

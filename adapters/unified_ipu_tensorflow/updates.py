"""``ui.optim`` on TensorFlow variables with PyTorch's arithmetic.

Keras' own optimizers keep the rate in float32, put it inside the velocity and epsilon elsewhere, so
they agree with nothing to better than 1e-7. TensorFlow's fused kernels do, if the corrections of
Adam go into rate and epsilon. They are called one by one: a traced function of many variables costs
more on the host than its operations, and would be traced anew for other variables without gradient.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import tensorflow as tf

from unified_ipu.adapter import optim
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.keras_generation import tf_variable
from unified_ipu_tensorflow.saved_state import check_kind, check_parameters

_TAG = "__python__"  # marks what JSON has no form for


class ExactOptimizer:
    """One of ``ui.optim`` over some variables; see ``Optimizer``.

    Slots are made when a variable is first used, and have the names that PyTorch gives them.

    Args:
        settings: Of ``ui.optim``.
        variables: The model's own, by name; constraints of Keras hold after each step.
    """

    def __init__(self, settings: Any, variables: Mapping[str, Any]) -> None:
        self.trained: Dict[str, tf.Variable] = {
            name: tf_variable(variable) for name, variable in variables.items()
        }
        self._constraints = [getattr(own, "constraint", None) for own in variables.values()]
        self._settings = settings
        self._slots: Dict[str, tf.Variable] = {}
        self._counts: Dict[str, int] = {}  # ahead of the slots "step" until someone asks for them
        self._constants: Dict[Tuple[float, tf.DType], tf.Tensor] = {}
        self._passing: Dict[Tuple[float, tf.DType], tf.Tensor] = {}  # constants of one update

    def apply(
        self,
        gradients: Sequence[Optional[tf.Tensor]],
        used: Sequence[bool],
        *,
        scale: float = 1.0,
        lr_factor: float = 1.0,
    ) -> None:
        """Step every variable that was used."""
        rate = self._settings.lr * lr_factor
        step = self._adam if isinstance(self._settings, optim.Adam) else self._sgd
        self._passing.clear()
        owners = zip(self.trained.items(), self._constraints)
        for ((name, variable), constraint), gradient, is_used in zip(owners, gradients, used):
            if not is_used or gradient is None:
                continue
            if scale != 1.0:
                gradient = gradient * self._of_update(scale, variable.dtype)  # noqa: PLW2901
            step(name, variable, gradient, rate)
            if constraint is not None:
                variable.assign(constraint(variable), read_value=False)

    def _sgd(self, name: str, variable: tf.Variable, gradient: tf.Tensor, rate: float) -> None:
        settings, dtype = self._settings, variable.dtype
        gradient = self._with_penalty(variable, gradient)
        lr = self._of_update(rate, dtype)
        if settings.momentum == 0.0:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=lr, delta=gradient)
            return
        is_first = f"{name}/momentum_buffer" not in self._slots
        if settings.dampening and not is_first:
            gradient = gradient * self._constant(1.0 - settings.dampening, dtype)
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=self._slot(name, "momentum_buffer").handle,
            lr=lr,
            grad=gradient,
            momentum=self._constant(settings.momentum, dtype),
            use_nesterov=settings.nesterov,
        )

    def _adam(self, name: str, variable: tf.Variable, gradient: tf.Tensor, rate: float) -> None:
        settings, dtype = self._settings, variable.dtype
        if isinstance(settings, optim.AdamW):
            self._decay(variable, rate)
        else:
            gradient = self._with_penalty(variable, gradient)
        count, (beta1, beta2) = self._count(name), settings.betas
        # PyTorch corrects both moments: m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Times
        # sqrt(1 - beta2^t) above and below that is a rate and an epsilon for the kernel, in
        # float64, while it would take the powers in the type of the variable.
        second = math.sqrt(1.0 - beta2**count)
        zero = self._constant(0.0, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._slot(name, "exp_avg").handle,
            v=self._slot(name, "exp_avg_sq").handle,
            beta1_power=zero,
            beta2_power=zero,
            lr=self._of_update(rate * second / (1.0 - beta1**count), dtype),
            beta1=self._constant(beta1, dtype),
            beta2=self._constant(beta2, dtype),
            epsilon=self._of_update(settings.eps * second, dtype),
            grad=gradient,
        )

    def _decay(self, variable: tf.Variable, rate: float) -> None:
        """Shrink a variable by itself, as AdamW does before its step."""
        if self._settings.weight_decay:
            kept = self._of_update(1.0 - rate * self._settings.weight_decay, variable.dtype)
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            value = tf.raw_ops.Mul(x=value, y=kept)
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

    def _count(self, name: str) -> int:
        """Count a step of a variable; how many it is now."""
        if name not in self._counts:
            self._counts[name] = int(self._slot(name, "step").numpy())
        self._counts[name] += 1
        return self._counts[name]

    def _settle(self) -> None:
        """Write the counts into their slots, which may be overwritten from outside now."""
        for name, count in self._counts.items():
            self._slots[f"{name}/step"].assign(float(count))
        self._counts.clear()

    def _with_penalty(self, variable: tf.Variable, gradient: tf.Tensor) -> tf.Tensor:
        if self._settings.weight_decay == 0.0:
            return gradient
        decay = self._constant(self._settings.weight_decay, variable.dtype)
        return gradient + decay * variable

    def _constant(self, value: float, dtype: tf.DType) -> tf.Tensor:
        """A setting as a tensor."""
        return _kept(self._constants, value, dtype)

    def _of_update(self, value: float, dtype: tf.DType) -> tf.Tensor:
        """A number of this update as a tensor, which variables may share."""
        return _kept(self._passing, value, dtype)

    def _slot(self, owner: str, slot: str) -> tf.Variable:
        name = f"{owner}/{slot}"
        if name not in self._slots:
            variable = self.trained[owner]
            if slot == "step":
                with tf.device("CPU:0"):  # read on the host at every step
                    made = tf.Variable(0.0, trainable=False, dtype=tf.float32)
            else:
                with tf.device(variable.device):
                    made = tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
            self._slots[name] = made
        return self._slots[name]

    def end_call(self, num_updates: int) -> None:
        """Do nothing: schedules over ``ui.optim`` are factors."""

    @property
    def settings(self) -> Any:
        """As they are now, a value of ``ui.optim``."""
        return self._settings

    def learning_rates(self) -> List[float]:
        """The one rate."""
        return [float(self._settings.lr)]

    def slots(self) -> Dict[str, tf.Variable]:
        """Those of variables that were used, in the order of the variables."""
        self._settle()
        return {
            name: self._slots[name]
            for owner in self.trained
            for name in (f"{owner}/{slot}" for slot in self._kinds())
            if name in self._slots
        }

    def _kinds(self) -> Tuple[str, ...]:
        if isinstance(self._settings, optim.Adam):
            return ("step", "exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self._settings.momentum else ()

    def make_slot(self, name: str) -> Optional[tf.Variable]:
        """Make a slot of zeros that is there already when its variable is first used."""
        owner, _, slot = name.rpartition("/")
        if owner not in self.trained or slot not in self._kinds():
            return None
        self._settle()
        return self._slot(owner, slot)

    def forget_slots(self) -> None:
        """Drop all."""
        self._counts.clear()
        self._slots.clear()

    def scalars(self) -> Dict[str, Any]:
        """Kind and settings, in the form that the torch adapter gives those of its optimizers."""
        settings = dataclasses.asdict(self._settings)
        if "betas" in settings:
            settings["betas"] = {_TAG: "tuple", "value": list(self._settings.betas)}
        group = {"parameters": list(self.trained), **settings}
        kind = type(self._settings).__qualname__
        return {"optimizer": {"kind": kind, "groups": [group], "slots": {}}}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """Take over the settings.

        Raises:
            ConfigError: If they are of another optimizer, of other variables, or ask for what
                ``ui.optim`` does not have.
        """
        saved = scalars.get("optimizer") or {}
        check_kind("optimizer", saved.get("kind"), type(self._settings).__qualname__)
        check_kind("scheduler", scalars.get("schedule_kind"), None)
        groups = saved["groups"]
        names = [name for group in groups for name in group["parameters"]]
        check_parameters(names, list(self.trained))
        if len(groups) != 1:
            raise ConfigError(
                f"the saved optimizer has {len(groups)} groups of parameters; unified_ipu.optim "
                "has one"
            )
        known = {field.name for field in dataclasses.fields(self._settings)}
        settings = {key: _plain(value) for key, value in groups[0].items() if key in known}
        others = [key for key in ("amsgrad", "maximize") if groups[0].get(key)]
        if others:
            raise ConfigError(
                f"the saved optimizer has {others[0]} on, which unified_ipu.optim does not have"
            )
        self._settings = type(self._settings)(**settings)

    def close(self) -> None:
        """Do nothing: the user's value is never changed."""


def _plain(value: Any) -> Any:
    return tuple(value["value"]) if isinstance(value, dict) and _TAG in value else value


def _kept(
    tensors: Dict[Tuple[float, tf.DType], tf.Tensor], value: float, dtype: tf.DType
) -> tf.Tensor:
    found = tensors.get((value, dtype))
    if found is None:
        found = tensors[value, dtype] = tf.constant(value, dtype)
    return found

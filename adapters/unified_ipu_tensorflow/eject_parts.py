"""Losses, optimizers and rates of Keras as text that TensorFlow 2.6 understands."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Tuple

import tensorflow as tf

from unified_ipu.adapter import Lowering, literal, losses, native_code, optim
from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.optimizers import is_schedule

_LOSSES: Dict[str, Tuple[str, ...]] = {
    "SparseCategoricalCrossentropy": ("from_logits",),
    "CategoricalCrossentropy": ("from_logits", "label_smoothing"),
    "BinaryCrossentropy": ("from_logits", "label_smoothing"),
    "MeanSquaredError": (),
    "MeanAbsoluteError": (),
    "Huber": ("delta",),
    "Hinge": (),
    "SquaredHinge": (),
    "LogCosh": (),
    "Poisson": (),
    "KLDivergence": (),
}
"""Losses of one value a row for outputs ``[rows, n]``, and what each is made with."""

_SHARED: Dict[str, str] = {
    "softmax_cross_entropy": "SparseCategoricalCrossentropy(from_logits=True",
    "sigmoid_cross_entropy": "BinaryCrossentropy(from_logits=True",
    "mean_squared_error": "MeanSquaredError(",
    "mean_absolute_error": "MeanAbsoluteError(",
}
"""``ui.losses`` whose mean is that of a loss of Keras."""

_OPTIMIZERS: Dict[str, Tuple[str, ...]] = {
    "SGD": ("momentum", "nesterov"),
    "Adam": ("beta_1", "beta_2", "epsilon", "amsgrad"),
    "RMSprop": ("rho", "momentum", "epsilon", "centered"),
    "Adagrad": ("initial_accumulator_value", "epsilon"),
}
_NEWER = ("weight_decay", "use_ema", "gradient_accumulation_steps", "loss_scale_factor")
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")

Write = Callable[[Any, str], str]


def loss_text(loss: Any, lowering: Lowering, write: Write) -> str:
    """Write a loss that adds up its rows.

    Args:
        loss: As ``session.compile`` got it.
        lowering: Says how the loss reduces.
        write: Values as text.

    Raises:
        CapabilityError: If it is a loss that is not written, with those that are.
    """
    reduction = f"reduction={native_code(_value(lowering, 'loss.reduction'))}"
    shared = isinstance(loss, losses.OutputLoss) and loss.kind in _SHARED and _is_plain(loss)
    if shared:
        opening = _SHARED[loss.kind]
        return f"tf.keras.losses.{opening}{', ' if opening[-1] != '(' else ''}{reduction})"
    kind = type(loss).__name__
    if kind not in _LOSSES or not type(loss).__module__.partition(".")[0].endswith("keras"):
        raise CapabilityError(
            NAME, f"loss= is a {kind}; those of Keras that are written: {', '.join(_LOSSES)}"
        )
    config = loss.get_config()
    if config.get("ignore_class") is not None or config.get("reduction") == "none":
        raise CapabilityError(NAME, f"{kind} with ignore_class= or no reduction is not written")
    given = [f"{name}={write(config[name], f'loss.{name}')}" for name in _LOSSES[kind]]
    return f"tf.keras.losses.{kind}({', '.join([*given, reduction])})"


def _is_plain(loss: losses.OutputLoss) -> bool:
    return loss.output is None and loss.class_weights is None and loss.ignore_index is None


def optimizer_text(settings: Any, lowering: Lowering, *, rate_changes: bool) -> Tuple[str, str]:
    """Write an optimizer, and its rate.

    Args:
        settings: A Keras optimizer or one of ``ui.optim``.
        lowering: Its settings of the optimizer are arguments here.
        rate_changes: Whether a schedule or a warm-up changes the rate.

    Returns:
        The expression that makes it with the learning rate ``rate``, and the rate: an expression
        of a number, or of a schedule of Keras.

    Raises:
        CapabilityError: If TensorFlow 2.6 has no such optimizer.
    """
    if settings is None:
        raise CapabilityError(NAME, "compile got no optimizer, so there is nothing to train")
    extra = [
        f"{call.name.partition('.')[2]}={native_code(call.value)}"
        for call in lowering.calls
        if call.program == "training" and call.name == "optimizer.global_clipnorm"
    ]
    if isinstance(settings, optim.SGD):
        return _exact_sgd(settings, extra, rate_changes=rate_changes), literal(settings.lr)
    kind = type(settings).__name__
    if kind not in _OPTIMIZERS or isinstance(settings, optim.Adam):
        raise CapabilityError(
            NAME,
            f"optimizer= is a {kind}, which TensorFlow 2.6 has not, or not with this arithmetic; "
            f"use ui.optim.SGD, or one of tf.keras.optimizers: {', '.join(_OPTIMIZERS)}",
        )
    config = settings.get_config()
    newer = [name for name in _NEWER if config.get(name)]
    clipping = [name for name in _CLIPPING if config.get(name) is not None]
    if newer or clipping:
        raise CapabilityError(
            NAME,
            f"{kind}({', '.join([*newer, *clipping])}=) is not written; TensorFlow 2.6 has not the "
            "first four, and clipping is update.clip_norm of the plan",
        )
    given = [f"{name}={literal(_number(config[name]))}" for name in _OPTIMIZERS[kind]]
    arguments = ", ".join(["learning_rate=0.0", *given, *extra])
    return f"tf.keras.optimizers.{kind}({arguments})", _rate(settings)


def _exact_sgd(settings: optim.SGD, extra: List[str], *, rate_changes: bool) -> str:
    if settings.weight_decay or settings.dampening or (settings.momentum and rate_changes):
        raise CapabilityError(
            NAME,
            f"{settings}: Keras' SGD decays and dampens nothing, and has the rate in its velocity, "
            "which is the same only while the rate does not change; use tf.keras.optimizers.SGD",
        )
    given = [f"momentum={settings.momentum!r}", f"nesterov={settings.nesterov!r}"]
    arguments = ", ".join(["learning_rate=0.0", *given, *extra])
    return f"tf.keras.optimizers.SGD({arguments})"


def _rate(optimizer: Any) -> str:
    """The learning rate, or the schedule that gives it.

    Raises:
        CapabilityError: If the schedule is none of Keras' own.
    """
    rate = getattr(optimizer, "_learning_rate", None)  # Keras 3: learning_rate is its value
    if rate is None:
        rate = optimizer.learning_rate
    if not is_schedule(rate):
        return literal(_number(tf.convert_to_tensor(rate).numpy()))
    kind = type(rate).__name__
    if getattr(tf.keras.optimizers.schedules, kind, None) is None:
        raise CapabilityError(NAME, f"the schedule {kind} is none of Keras' own")
    defaults = inspect.signature(type(rate)).parameters
    given = [
        f"{name}={literal(_number(value))}"
        for name, value in rate.get_config().items()
        if value != defaults[name].default
    ]
    return f"tf.keras.optimizers.schedules.{kind}({', '.join(given)})"


def _number(value: Any) -> Any:
    """A plain value; a float32 as the short decimal number that it was made from."""
    if hasattr(value, "dtype") and str(value.dtype) == "float32":
        return float(str(value))
    return value.item() if hasattr(value, "item") else value


def _value(lowering: Lowering, name: str) -> Any:
    return next(call.value for call in lowering.calls if call.name == name)

"""Keras losses of a model's outputs: one, or one for each of several, each with its own weight."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import tensorflow as tf

from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.keras_generation import is_keras, is_keras3, keras_of
from unified_ipu_tensorflow.losses import KerasLoss, Sum, as_keras_loss, from_function, is_loss

Name = Any  # a key of a dict of outputs, or a place in a list of them


class Term(NamedTuple):
    """One loss of the sum that a model is trained on."""

    loss: KerasLoss
    factor: float
    outputs: Any
    targets: Any
    sample_weight: Any


class OutputLosses:
    """What ``model.compile(loss=..., loss_weights=...)`` or ``loss=`` says.

    With one loss (S, W) is its own. With several, each a mean over what it counts, W is the number
    of rows and S is W times the weighted sum of the means: then a loss whose units are not in step
    with the rows (masks, ``ignore_class``) is a mean over each micro-batch.

    Args:
        losses: One loss for all outputs, or a dict or list of losses in the shape of the outputs.
            A loss is a ``keras.losses.Loss``, a name, or a function ``(y_true, y_pred)``.
        factors: What each is multiplied with, in the same shape; None for 1.
        model: Its outputs may have names.

    Raises:
        ConfigError: If one of them is no loss of Keras.
    """

    def __init__(self, losses: Any, factors: Any, model: Any) -> None:
        self._names: Sequence[str] = list(getattr(model, "output_names", None) or ())
        self._losses = _map(losses, lambda loss: _known(loss, model))
        self._factors = factors
        self._all: List[KerasLoss] = [one for one in _flat(self._losses) if one is not None]
        if not self._all:
            raise ConfigError("the model was compiled with no loss for any of its outputs")

    @property
    def reduction(self) -> Optional[str]:
        """Of the one loss; None where there are several."""
        return self._all[0].reduction if len(self._all) == 1 else None

    @property
    def usually_counts_rows(self) -> bool:
        """Whether W is the number of rows for one target a row."""
        return len(self._all) > 1 or self._all[0].usually_counts_rows

    def is_empty(self, targets: Any, counted: Optional[Any]) -> bool:
        """Whether the targets alone, on the host, tell that nothing counts."""
        if len(self._all) == 1 and not isinstance(targets, (dict, tuple, list)):
            return self._all[0].is_empty(targets, counted)
        return counted is not None and not counted.any()

    def sum(
        self,
        outputs: Any,
        targets: Any,
        *,
        rows: int,
        counted: Any = None,
        sample_weight: Any = None,
    ) -> Sum:
        """S and W of a micro-batch; see ``KerasLoss.sum``.

        Raises:
            ConfigError: If losses, outputs and targets do not fit together.
        """
        terms = self.terms(outputs, targets, sample_weight)
        sums = [
            term.loss.sum(
                term.outputs,
                term.targets,
                rows=rows,
                counted=counted,
                sample_weight=term.sample_weight,
            )
            for term in terms
        ]
        if len(terms) == 1:
            return Sum(sums[0].total * terms[0].factor, sums[0].weight)
        weight = tf.constant(float(rows), tf.float64)
        if counted is not None:
            weight = tf.reduce_sum(tf.cast(counted, tf.float64))
        kind = tf.float64 if any(s.total.dtype == tf.float64 for s in sums) else sums[0].total.dtype
        total = tf.zeros([], kind)
        for term, one in zip(terms, sums):
            part = tf.cast(one.total, kind) * term.factor
            if term.loss.reduction != "sum":
                part = part * tf.cast(tf.math.divide_no_nan(weight, one.weight), kind)
            total = total + part
        return Sum(total, weight)

    @property
    def losses(self) -> Sequence[KerasLoss]:
        """All of them."""
        return self._all

    def terms(self, outputs: Any, targets: Any, sample_weight: Any) -> List[Term]:
        """Each loss with its factor and its part of outputs, targets and weights.

        Raises:
            ConfigError: If losses, outputs and targets do not fit together.
        """
        if not isinstance(outputs, (dict, list, tuple)):
            outputs = [outputs]
            targets = targets if _is_wrapped(targets, self._names) else [targets]
        names: List[Name] = list(outputs) if isinstance(outputs, dict) else []
        names = names or list(range(len(outputs)))
        terms = []
        for place, name in enumerate(names):
            where = _Where(name, place, self._names, len(names))
            loss = where.of(self._losses, "loss", shared=True)
            if loss is None:
                continue
            factor = where.of(self._factors, "loss_weights", shared=True)
            terms.append(
                Term(
                    loss,
                    1.0 if factor is None else float(factor),
                    outputs[name],
                    where.of(targets, "the targets", shared=False),
                    where.of(sample_weight, "the sample weights", shared=True),
                )
            )
        if not terms:
            raise ConfigError(
                f"no loss is for one of the model's outputs {self._names or names}; give losses "
                "in the shape of the outputs"
            )
        return terms


class _Where:
    """One of a model's outputs: its key or place, and its name."""

    def __init__(self, name: Name, place: int, names: Sequence[str], count: int) -> None:
        self._place = place
        self._count = count
        self._keys: List[Name] = [name] if isinstance(name, str) else list(names[place : place + 1])

    def of(self, parts: Any, what: str, *, shared: bool) -> Any:
        """The part of a dict or list that is for this output.

        Args:
            parts: A dict by names, a list in order, or one thing.
            what: For messages.
            shared: Whether one thing is for all outputs.

        Raises:
            ConfigError: If there is none.
        """
        if isinstance(parts, dict):
            for key in self._keys:
                if key in parts:
                    return parts[key]
            if shared:
                return None
            raise ConfigError(
                f"{what} have keys {sorted(map(str, parts))}, none of them for the output "
                f"{(self._keys or [self._place])[0]!r}"
            )
        if isinstance(parts, (list, tuple)):
            if len(parts) != self._count:
                raise ConfigError(
                    f"the model has {self._count} output(s), but {what} has {len(parts)} parts"
                )
            return parts[self._place]
        if not shared and self._count > 1:
            raise ConfigError(
                f"the model has {self._count} outputs, but {what} are one array; give one for "
                "each output, as a dict or a tuple"
            )
        return parts


def compiled_losses(model: Any) -> Optional[OutputLosses]:
    """Losses that the user gave to ``model.compile``, or None if there are none.

    Raises:
        ConfigError: If the model computes its loss in a method of its own.
    """
    if not is_keras(model):
        return None
    # Neither generation has a public name for them; model.loss may be the user's own attribute.
    if is_keras3(model):
        holder, name = getattr(model, "_compile_loss", None), "_user_loss"
    else:
        holder, name = getattr(model, "compiled_loss", None), "_user_losses"
    found = getattr(holder, name, None)
    if not found:
        return None
    base = keras_of(model).Model
    for method in ("train_step", "compute_loss"):
        own = getattr(type(model), method, None)
        if own is not getattr(base, method, None):
            raise ConfigError(
                f"{type(model).__name__} has a {method} of its own, which is not called here; pass "
                "objective=, a function (model, batch) -> unified_ipu.Loss, with what it computes"
            )
    return OutputLosses(found, getattr(holder, "_user_loss_weights", None), model)


def _known(loss: Any, model: Any) -> Optional[KerasLoss]:
    if loss is None:
        return None
    found = as_keras_loss(loss, model)
    if not is_loss(found):
        if is_keras(loss) or not callable(loss):
            raise ConfigError(
                f"loss={type(loss).__name__} is none that is reduced as Keras losses are; pass "
                "objective= instead, and return the sum and its weight"
            )
        found = from_function(loss, model)  # in model.compile every function is (y_true, y_pred)
    return KerasLoss(found)


def _is_wrapped(targets: Any, names: Sequence[str]) -> bool:
    if isinstance(targets, dict):
        return len(targets) == 1 and list(targets) == list(names)
    return isinstance(targets, (list, tuple)) and len(targets) == 1


def _map(tree: Any, function: Any) -> Any:
    if isinstance(tree, dict):
        return {key: function(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [function(value) for value in tree]
    return function(tree)


def _flat(tree: Any) -> List[Any]:
    found: Dict[Any, Any] = tree if isinstance(tree, dict) else {}
    if found:
        return list(found.values())
    return list(tree) if isinstance(tree, list) else [tree]

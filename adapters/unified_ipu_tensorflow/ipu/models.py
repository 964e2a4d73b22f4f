"""The Keras models that a device runs, around the user's own.

Training runs model and loss as one: x and y go in, one value a row comes out, and Keras adds up
these values times the sample weights, which are the coefficients. So every form of loss is one.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf

from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.batches import call_model, num_rows
from unified_ipu_tensorflow.errors import NAME
from unified_ipu_tensorflow.ipu.row_losses import RowLoss
from unified_ipu_tensorflow.keras_generation import is_keras3, tf_variable, trainable_of
from unified_ipu_tensorflow.names import all_layers


class Training(tf.keras.Model):  # type: ignore[misc]  # whatever tf.keras is
    """The user's model with its loss.

    Args:
        model: The user's, built.
        loss: What its outputs are made of.
        trained: Variables that are trained.
        share: What the terms that the model adds are multiplied with, each time they are added.
    """

    def __init__(self, model: Any, loss: RowLoss, trained: Sequence[Any], share: float) -> None:
        super().__init__(autocast=False)
        # Not by attribute: Keras would keep books on what is in lists.
        notes = {"trained": list(trained), "loss": loss, "share": share, "forms": None}
        object.__setattr__(self, "_notes", notes)
        self.inner = model
        self.built = True

    def set_forms(self, forms: Any) -> None:
        """Say what the shapes of x and y are: Keras gives vectors a second axis on the way."""
        self._notes["forms"] = forms

    def call(self, batch: Any, training: Optional[bool] = None) -> Any:
        """One value a row, ``[rows, 1]``."""
        if self._notes["forms"] is not None:
            batch = restored(batch, self._notes["forms"])
        outputs = call_model(self.inner, batch["x"], training=bool(training))
        count = num_rows(batch["x"])
        values = self._notes["loss"].rows(outputs, batch.get("y"), count)
        return tf.reshape(tf.cast(values, tf.float32), [count, 1])

    @property
    def losses(self) -> List[Any]:
        """Penalties on weights, shared out over the micro-batches of an update.

        Raises:
            CapabilityError: If there are terms that depend on samples.
        """
        terms = list(self.inner.losses)
        if len(terms) != num_penalties(self.inner):
            raise CapabilityError(
                NAME,
                "the model adds terms that depend on samples (add_loss, activity_regularizer); "
                "IPU Keras adds them as they are in every micro-batch, whatever it weighs: put "
                "them into the loss, or train on a host target",
            )
        return [term * self._notes["share"] for term in terms]

    @property
    def trainable_weights(self) -> List[Any]:
        """What the optimizer drives, not all that could be trained."""
        return list(self._notes["trained"])

    @property
    def trainable_variables(self) -> List[Any]:
        """The same."""
        return list(self._notes["trained"])


class Inference(tf.keras.Model):  # type: ignore[misc]  # whatever tf.keras is
    """The user's model as a program of its own, with options of its own.

    Args:
        model: The user's, built.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(autocast=False)
        object.__setattr__(self, "_notes", {"forms": None})
        self.inner = model
        self.built = True

    def set_forms(self, forms: Any) -> None:
        """Say what the shapes of x are."""
        self._notes["forms"] = forms

    def call(self, batch: Any, training: Optional[bool] = None) -> Any:
        """Outputs of the model in evaluation mode."""
        del training
        if self._notes["forms"] is not None:
            batch = restored(batch, self._notes["forms"])
        return call_model(self.inner, batch["x"], training=False)


def restored(batch: Any, forms: Any) -> Any:
    """Give every leaf the shape it had before Keras made vectors columns.

    Args:
        batch: What the model got.
        forms: Shapes of rows, in the same structure.
    """
    leaves = tf.nest.flatten(batch)
    shapes = [form.shape for form in tf.nest.flatten(forms)]
    whole = [tf.reshape(leaf, [leaf.shape[0], *shape]) for leaf, shape in zip(leaves, shapes)]
    return tf.nest.pack_sequence_as(forms, whole)


class Form:
    """The shape of one row of a leaf.

    Args:
        shape: Without the axis of rows.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)


def num_penalties(model: Any) -> int:
    """How many terms a model adds that depend on weights only."""
    if is_keras3(model):
        return sum(
            1 for own in trainable_of(model) if getattr(own, "regularizer", None) is not None
        )
    layers = model._flatten_layers()  # noqa: SLF001 no other way
    return sum(len(layer._callable_losses) for layer in layers)  # noqa: SLF001 no other way


def row_sum(base: Any) -> Any:
    """A Keras loss that takes the model's outputs as its values.

    Args:
        base: ``keras.losses.Loss``.
    """

    class RowSum(base):  # type: ignore[misc]  # known only when Keras is imported
        """The values of the rows; its reduction is set by the lowered call."""

        def call(self, y_true: Any, y_pred: Any) -> Any:
            """One value a row."""
            del y_true
            return tf.reshape(y_pred, [-1])

    return RowSum(name="rows")


def check_variables(model: Any) -> None:
    """Refuse what a device has no type for.

    Raises:
        CapabilityError: If a variable has float64.
    """
    for own in model.variables:
        variable = tf_variable(own)
        if variable.dtype == tf.float64:
            raise CapabilityError(
                NAME,
                f"variable {variable.name!r} has float64, which IPUs lack; build the model in "
                "float32",
            )


def named_layers(model: Any, test: Callable[[Any], bool]) -> List[str]:
    """Names of the layers that pass a test."""
    return [name for name, layer in all_layers(model) if test(layer)]

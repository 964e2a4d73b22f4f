"""What the conformance kit tests this adapter with; imports TensorFlow only for a model."""

from __future__ import annotations

import pickle
import random
from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import Loss, losses, optim
from unified_ipu.testing import Model

_NO_OBJECTIVE = "IPU Keras trains a model and a loss, and takes no objective="
_NO_DAMPENING = (
    "a device program cannot tell the first step of a momentum, which is not dampened, from others"
)
_NO_HALF = "half precision and loss scales of Keras models are built for host targets only"
_REDUCTIONS = {"mean": "sum_over_batch_size", "sum": "sum", "none": "none"}


class TensorflowSubject:
    """See ``unified_ipu.testing.Subject``."""

    adapter = "tensorflow"
    preload = ("tensorflow",)
    # Keras keeps the rate in float32, and adds epsilon before it corrects the moments.
    tolerance_native = 1e-5
    device_dtype = "float32"
    device_limits: ClassVar[Mapping[str, str]] = {
        "test_l1_3_token_losses_are_divided_by_all_tokens": _NO_OBJECTIVE,
        "test_l1_11_a_penalty_weighs_the_same_however_the_update_is_split": _NO_OBJECTIVE,
        "test_an_objective_must_return_a_loss": _NO_OBJECTIVE,
        "test_l1_10_what_one_rank_uses_is_used_on_all": (
            "IPU Keras refuses a trained variable that the loss does not depend on, and runs no "
            "model eagerly, where Python could choose a branch by a value of the batch"
        ),
        "test_l4_2_ranks_that_build_other_models_are_told_which": (
            "PopDistStrategy broadcasts variables where they are made, so ranks whose models "
            "differ disagree in the scope already, with an error on each, before compile"
        ),
        "test_l1_8_a_loss_scale_does_not_show": _NO_HALF,
        "test_l5_1_weights_are_counted_exactly_in_half_precision": _NO_HALF,
        "test_l5_6_forward_rounds_and_weights_do_not": _NO_HALF,
        "test_l5_*dampen*": _NO_DAMPENING,
        "test_l5_3_fifty_updates_with_each_option_equal_the_oracle*momentum-decay*": _NO_DAMPENING,
    }

    def linear(self, weight: Any, bias: Optional[Any] = None, *, dtype: str = "float64") -> Model:
        """``x @ weight + bias``."""
        from unified_ipu_tensorflow.conformance_models import dense, stacked

        names = {"weight": "linear/kernel"}
        if bias is not None:
            names["bias"] = "linear/bias"
        layer = dense("linear", weight, bias, dtype)
        return Model(stacked(len(weight), dtype, [layer]), names)

    def mlp(
        self, weights: Sequence[Any], biases: Sequence[Any], *, dtype: str = "float64"
    ) -> Model:
        """Dense layers with tanh between."""
        from unified_ipu_tensorflow.conformance_models import mlp

        names = {f"weight.{k}": f"layer{k}/kernel" for k in range(len(weights))}
        names.update({f"bias.{k}": f"layer{k}/bias" for k in range(len(biases))})
        return Model(mlp(weights, biases, dtype), names)

    def branches(
        self, a: float, b: float, c: float, frozen: float, *, dtype: str = "float64"
    ) -> Model:
        """Four parameters, of which a micro-batch uses two."""
        from unified_ipu_tensorflow.conformance_models import Branches

        values = {"a": a, "b": b, "c": c, "frozen": frozen}
        return Model(Branches(values, dtype), {name: name for name in values})

    def dropout_probe(self, size: int, rate: float, *, dtype: str = "float64") -> Model:
        """``dropout(x) @ weight``."""
        from unified_ipu_tensorflow.conformance_models import dense, keras, stacked

        drop = keras.layers.Dropout(rate, dtype=dtype)
        last = dense("linear", np.zeros((size, 1)), None, dtype)
        return Model(stacked(size, dtype, [drop, last]), {"weight": "linear/kernel"})

    def normalised(self, *, dtype: str = "float64") -> Model:
        """Batch normalisation of one feature, times ``weight``."""
        from unified_ipu_tensorflow.conformance_models import dense, keras, stacked

        norm = keras.layers.BatchNormalization(center=False, scale=False, dtype=dtype, name="norm")
        last = dense("linear", np.ones((1, 1)), None, dtype)
        names = {
            "weight": "linear/kernel",
            "mean": "norm/moving_mean",
            "variance": "norm/moving_variance",
        }
        return Model(stacked(1, dtype, [norm, last]), names)

    def tied(self, weight: float, *, dtype: str = "float64") -> Model:
        """``x * weight * weight``."""
        from unified_ipu_tensorflow.conformance_models import tied

        return Model(tied(weight, dtype), {"weight": "first/weight", "twin": "second/weight"})

    def mean_squared_error(self, reduction: str = "mean") -> Any:
        """Keras' ``MeanSquaredError``."""
        from unified_ipu_tensorflow.conformance_models import keras_loss

        return keras_loss("MeanSquaredError", reduction=_REDUCTIONS[reduction])

    def cross_entropy(
        self,
        class_weights: Optional[Sequence[float]] = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        dtype: str = "float64",
    ) -> Any:
        """Keras' ``SparseCategoricalCrossentropy``; the core's where Keras has no such loss."""
        del dtype  # of the class weights, which are the core's numbers
        from unified_ipu_tensorflow.conformance_models import has_keras3, keras_loss

        is_ignoring = ignore_index != -100  # noqa: PLR2004 the core's default
        if class_weights is None and (has_keras3() or not is_ignoring):
            options = {"ignore_class": ignore_index} if is_ignoring else {}
            reduction = _REDUCTIONS[reduction]
            return keras_loss(
                "SparseCategoricalCrossentropy", from_logits=True, reduction=reduction, **options
            )
        return losses.softmax_cross_entropy(
            class_weights=class_weights, ignore_index=ignore_index, reduction=reduction
        )

    def product_loss(self, reduction: str = "mean") -> Any:
        """``outputs * targets`` summed over axis 1."""
        import tensorflow as tf

        def loss(outputs: Any, targets: Any) -> Any:
            rows = tf.reduce_sum(outputs * targets, axis=1)
            if reduction == "none":
                return rows
            return tf.reduce_mean(rows) if reduction == "mean" else tf.reduce_sum(rows)

        return loss

    def token_objective(self, penalty: float = 0.0) -> Any:
        """The masked sum of ``x * weight``, and a penalty."""
        import tensorflow as tf

        def objective(model: Any, batch: Mapping[str, Any]) -> Loss:
            x, mask = batch["x"], batch["mask"]
            outputs = tf.reshape(model(tf.reshape(x, (-1, 1))), tf.shape(x))
            weight = tf.reduce_sum(mask)
            kernel = tf.convert_to_tensor(model.trainable_variables[0])
            total = tf.reduce_sum(mask * outputs)
            total += weight * penalty * tf.reduce_sum(kernel**2)
            metrics = {"x": (tf.reduce_sum(mask * x), weight)}
            return Loss(sum=total, weight=weight, metrics=metrics)

        return objective

    def on_device(self, native: Any, options: Dict[str, Any]) -> Tuple[Any, Dict[str, Any]]:
        """The same model; a loss of Keras computes in the type that a device has.

        Args:
            native: The model.
            options: Of ``compile``.
        """
        from unified_ipu_tensorflow.conformance_models import in_device_type

        loss = options.get("loss")
        return native, {**options, "loss": in_device_type(loss, self.device_dtype)}

    def native_optimizer(self, model: Model, settings: Any, rates: Mapping[str, float]) -> Any:
        """A Keras optimizer, which has no groups of parameters.

        Raises:
            ValueError: If the rates differ, or not all parameters have one.
        """
        from unified_ipu_tensorflow.conformance_models import keras

        if set(rates) != set(model.names) or len(set(rates.values())) != 1:
            raise ValueError(f"Keras optimizers have one rate for all parameters, got {rates}")
        options: Dict[str, Any] = {"learning_rate": next(iter(rates.values()))}
        if settings.weight_decay:
            options["weight_decay"] = settings.weight_decay
        if isinstance(settings, optim.SGD):
            options.update(momentum=settings.momentum, nesterov=settings.nesterov)
            return keras.optimizers.SGD(**options)
        beta_1, beta_2 = settings.betas
        options.update(beta_1=beta_1, beta_2=beta_2, epsilon=settings.eps)
        kind = (
            keras.optimizers.AdamW if isinstance(settings, optim.AdamW) else keras.optimizers.Adam
        )
        return kind(**options)

    def native_schedule(self, optimizer: Any, factor: float) -> Any:
        """``ExponentialDecay`` from the optimizer's rate."""
        from unified_ipu_tensorflow.conformance_models import keras

        rate = float(optimizer.learning_rate)
        return keras.optimizers.schedules.ExponentialDecay(rate, 1, factor)

    def tensors(self, tree: Any) -> Any:
        """TensorFlow's tensors of the arrays in a tree."""
        import tensorflow as tf

        if isinstance(tree, dict):
            return {key: self.tensors(child) for key, child in tree.items()}
        if isinstance(tree, (tuple, list)):
            return type(tree)(self.tensors(child) for child in tree)
        return tf.constant(tree)

    def read(self, model: Model) -> Dict[str, Any]:
        """Variables of the user's own model."""
        from unified_ipu_tensorflow.conformance_models import read

        return read(model.native, list(model.names.values()))

    def random_state(self) -> Tuple[bytes, ...]:
        """State of TensorFlow's global generator, and of Python's, which Keras 3 draws from."""
        import tensorflow as tf

        own = tf.random.get_global_generator().state.numpy().tobytes()
        return (own, pickle.dumps(random.getstate()))

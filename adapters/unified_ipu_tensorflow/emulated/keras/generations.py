"""One training and one test step of a compiled model, in Keras 2 and in Keras 3.

IPU Keras has its own ``train_step``: forward, the compiled loss with ``model.losses`` added as they
are, gradients, metrics. A variable without a gradient is an error there.

Source: Graphcore's Keras of SDK 3.4, ``extensions_base.py`` and ``optimizer_v2.py``
(``get_gradients``); the loss and metrics of Keras 3 as in its ``Trainer``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import tensorflow as tf

from unified_ipu_tensorflow.keras_generation import is_keras3


def unpacked(element: Any) -> Tuple[Any, Any, Any]:
    """x, y and sample weights of an element of the data set, each vector as a column.

    Args:
        element: x alone, or a tuple of one to three.
    """
    parts = element if isinstance(element, tuple) else (element,)
    parts = tf.nest.map_structure(_as_column, parts)
    return (*parts, None, None, None)[:3]


def _as_column(tensor: Any) -> Any:
    return tensor[:, tf.newaxis] if tensor.shape.rank == 1 else tensor


def training_step(model: Any, element: Any) -> Tuple[List[Any], Dict[str, Any]]:
    """Gradients of the trainable variables, dense, and the values of all metrics so far.

    Keras divides what is a mean, and the terms of the model, by the replicas in sync; the losses it
    reports are not divided, and those that are sums are multiplied.

    Raises:
        ValueError: If a trainable variable has no gradient.
    """
    x, y, sample_weight = unpacked(element)
    variables = list(model.trainable_variables)
    in_sync = model._ipu_state.strategy.num_replicas_in_sync
    if in_sync > 1:
        sample_weight = _for_all(model, x, sample_weight, in_sync)
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = _loss(model, x, y, y_pred, sample_weight, training=True)
        share = loss / tf.cast(in_sync, loss.dtype)
    gradients = tape.gradient(share, [_plain(variable) for variable in variables])
    for gradient, variable in zip(gradients, variables):
        if gradient is None:
            raise ValueError(
                f"Variable {variable.name} has `None` for gradient: the loss does not depend on "
                "it; set trainable = False on its layer"
            )
    return [tf.convert_to_tensor(one) for one in gradients], _metrics(
        model, x, y, y_pred, loss, sample_weight
    )


def test_step(model: Any, element: Any) -> Dict[str, Any]:
    """Values of all metrics so far."""
    x, y, sample_weight = unpacked(element)
    y_pred = model(x, training=False)
    loss = _loss(model, x, y, y_pred, sample_weight, training=False)
    return _metrics(model, x, y, y_pred, loss, sample_weight)


def predict_step(model: Any, element: Any) -> Any:
    """Outputs of the model."""
    return model(unpacked(element)[0], training=False)


def _for_all(model: Any, x: Any, sample_weight: Any, in_sync: int) -> Any:
    """Sample weights times the replicas, where the one loss of the model is a sum.

    Raises:
        NotImplementedError: If the model has several losses, or one of no known reduction.
    """
    loss = model.loss
    reduction = None if isinstance(loss, (dict, list)) else str(getattr(loss, "reduction", "auto"))
    if reduction in {"auto", "sum_over_batch_size"}:
        return sample_weight
    if reduction != "sum":
        raise NotImplementedError(
            "several processes are emulated for models with one loss, whose reduction is sum or "
            f"a mean, got {loss!r}"
        )
    if sample_weight is None:
        sample_weight = tf.ones(tf.shape(tf.nest.flatten(x)[0])[:1])
    return sample_weight * tf.cast(in_sync, sample_weight.dtype)


def _loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
    if is_keras3(model):
        return model.compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
        )
    return model.compiled_loss(y, y_pred, sample_weight, regularization_losses=model.losses)


def _metrics(
    model: Any, x: Any, y: Any, y_pred: Any, loss: Any, sample_weight: Any
) -> Dict[str, Any]:
    if is_keras3(model):
        rows = tf.shape(tf.nest.flatten(x)[0])[0]
        model._loss_tracker.update_state(loss, sample_weight=rows)
        return dict(model.compute_metrics(x, y, y_pred, sample_weight=sample_weight))
    model.compiled_metrics.update_state(y, y_pred, sample_weight)
    return {metric.name: metric.result() for metric in model.metrics}


def prepare_optimizer(optimizer: Any, variables: List[Any]) -> None:
    """Make all slots, which a traced step must find there."""
    if is_keras3(optimizer):
        if not optimizer.built:
            optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)


def apply_gradients(optimizer: Any, gradients: List[Any], variables: List[Any]) -> None:
    """One step of the optimizer, clipping and transformers included.

    Keras 3 has no ``gradient_transformers``: there they come after its own clipping, as in Keras 2.
    """
    transformers = getattr(optimizer, "gradient_transformers", None)
    if is_keras3(optimizer) and transformers:
        gradients = optimizer._clip_gradients(gradients)
        pairs = list(zip(gradients, variables))
        for transformer in transformers:
            pairs = transformer(pairs)
        optimizer._clip_gradients = lambda grads: grads
        try:
            optimizer.apply_gradients(pairs)
        finally:
            del optimizer._clip_gradients
        return
    optimizer.apply_gradients(list(zip(gradients, variables)))


def _plain(variable: Any) -> Any:
    return variable if isinstance(variable, tf.Variable) else variable.value

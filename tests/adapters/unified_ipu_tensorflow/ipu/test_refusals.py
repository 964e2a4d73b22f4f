"""What a Keras model on IPUs is refused for, before training and with the change to make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from tests.adapters.unified_ipu_tensorflow.ipu.sessions import (
    device,
    keras,
    layers,
    mlp,
    numbers,
)
from unified_ipu.adapter import Job, Place
from unified_ipu.errors import CapabilityError, ConfigError, PlanError
from unified_ipu_tensorflow import create

pytestmark = pytest.mark.timeout(300)


def compiled(build: Any = mlp, *, in_scope: bool = True, plan: Any = None, **options: Any) -> Any:
    """Compile and make one update."""
    options.setdefault("loss", keras.losses.MeanSquaredError())
    options.setdefault("optimizer", ui.optim.SGD(0.1))
    outside = None if in_scope else build()
    with ui.Session(ui.Plan().replace(device(**(plan or {})))) as session:
        with session.scope():
            model = build() if in_scope else outside
        data = options.pop("data", numbers(64))
        program = session.compile(model, **options)
        for call in session.loader(data):
            program.step(call)


def dropout() -> Any:
    return keras.Sequential([keras.Input((3,)), layers.Dropout(0.5), layers.Dense(1)])


def double() -> Any:
    dense = layers.Dense(1, dtype="float64")
    return keras.Sequential([keras.Input((3,), dtype="float64"), dense])


def unbuilt() -> Any:
    return keras.Sequential([layers.Dense(1)])


class Plain(tf.Module):  # type: ignore[misc]  # of no known type
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable([[1.0]] * 3)

    def __call__(self, x: Any) -> Any:
        return x @ self.weight


def eager() -> Any:
    model = mlp()
    model.run_eagerly = True
    return model


def penalised() -> Any:
    return mlp(kernel_regularizer="l2")


def active() -> Any:
    return mlp(activity_regularizer="l2")


def loose() -> Any:
    """A layer whose outputs do not reach the loss."""
    start = keras.Input((3,))
    cut = layers.Lambda(tf.stop_gradient)(layers.Dense(1)(start))
    return keras.Model(start, layers.Add()([layers.Dense(1)(start), cut]))


class Masked(keras.Model):  # type: ignore[misc]  # of no known type
    def __init__(self) -> None:
        super().__init__()
        self.masking, self.dense = layers.Masking(), layers.Dense(1)
        self(np.zeros((1, 2, 3), "float32"))

    def call(self, x: Any, training: Any = None) -> Any:
        masked = self.masking(x)
        outputs = self.dense(masked)
        outputs._keras_mask = tf.reduce_any(x != 0.0, axis=-1)
        return outputs


def pair(outputs: Any, targets: Any) -> Any:
    return ui.Loss(sum=tf.reduce_sum(outputs - targets), weight=outputs.shape[0])


@pytest.mark.parametrize(
    ("build", "options", "error", "words"),
    [
        (dropout, {}, CapabilityError, r"'dropout'.*ipu\.random_layers"),
        (double, {}, CapabilityError, "float64.*float32"),
        (unbuilt, {}, ConfigError, "before compile"),
        (Plain, {}, CapabilityError, "trains Keras models, got a Plain"),
        (eager, {}, CapabilityError, "run_eagerly = False"),
        (mlp, {"in_scope": False}, ConfigError, r"session\.scope\(\)"),
        (
            mlp,
            {"plan": {"precision.compute": "float16"}},
            CapabilityError,
            "half precision of Keras models on IPUs is not built yet",
        ),
        (
            mlp,
            {"plan": {"precision.loss_scale": 8.0}},
            CapabilityError,
            "half precision of Keras models on IPUs is not built yet",
        ),
        (mlp, {"plan": {"compile.cache_dir": "cache"}}, ConfigError, "TF_POPLAR_FLAGS='--exec"),
        (mlp, {"plan": {"batch.remainder": "exact"}}, PlanError, "batch.remainder"),
        (penalised, {"plan": {"update.reduction": "sum"}}, CapabilityError, "penalties on weights"),
        (active, {}, CapabilityError, "terms that depend on samples"),
        (loose, {}, ConfigError, "`None` for gradient"),
        (
            mlp,
            {"optimizer": ui.optim.SGD(0.1, momentum=0.9, dampening=0.1)},
            CapabilityError,
            "dampening=0",
        ),
        (mlp, {"loss": None, "objective": pair}, CapabilityError, "takes no objective="),
        (mlp, {"loss": None}, CapabilityError, "pass loss="),
        (mlp, {"loss": pair}, CapabilityError, "pass loss_reduction="),
        (
            Masked,
            {"data": (np.ones((64, 2, 3), "float32"), np.ones((64, 2, 1), "float32"))},
            CapabilityError,
            "mask of the model",
        ),
        (
            mlp,
            {"data": (numbers(64)[0], np.full((64, 1), 2**40))},
            CapabilityError,
            "beyond int32",
        ),
        (
            mlp,
            {"data": (*numbers(64), np.ones((64, 2), "float32"))},
            ConfigError,
            "one number a row",
        ),
    ],
)
def test_what_a_device_cannot_do_is_refused_with_the_change(build, options, error, words):
    with pytest.raises(error, match=words):
        compiled(build, **options)


def test_a_loss_of_one_number_cannot_leave_out_padding():
    with pytest.raises(ConfigError, match="rows of padding"):
        compiled(loss=lambda o, t: tf.reduce_mean(o - t), data=numbers(60))


def test_stages_are_refused_until_they_can_be_given():
    settings = {"mesh.stage": 2, "batch.global_batch_size": 32, "ipu.replicas_per_process": 1}
    plan = ui.Plan().replace(device(**settings))
    job = Job(mlp(), ui.optim.SGD(0.1), keras.losses.MeanSquaredError())
    with pytest.raises(CapabilityError, match=r"set mesh\.stage to 1"):
        create().build(job, plan, Place())


def test_a_scope_without_the_sdk_opens_nothing_for_models_of_others():
    plan = ui.Plan().replace(device(target="ipu"))
    with create().scope(plan, Place()):
        assert not hasattr(mlp(), "set_replication_options")


def test_without_an_optimizer_a_program_evaluates_only():
    x, y = numbers(20)
    with ui.Session(ui.Plan().replace(device())) as session:
        with session.scope():
            model = mlp()
        program = session.compile(model, loss=keras.losses.MeanSquaredError())
        assert program.predict(session.loader((x, y), train=False)).shape == (20, 1)
        with pytest.raises(ConfigError, match="without an optimizer"):
            program.step((x[:8], y[:8]))

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import Job, MicroBatch, Place, TensorSpec, optim
from unified_ipu.errors import ConfigError
from unified_ipu.plan import Plan
from unified_ipu_tensorflow import create
from unified_ipu_tensorflow.names import named_variables
from unified_ipu_tensorflow.tensors import Catalog, trainable_variables

pytestmark = pytest.mark.timeout(120)

keras: Any = tf.keras
layers: Any = tf.keras.layers


def model():
    return keras.Sequential(
        [keras.Input((2,)), layers.Dense(3, name="in"), layers.BatchNormalization(name="norm")]
    )


def replica(**changes):
    job = {"loss": keras.losses.MeanSquaredError(), "optimizer": optim.Adam(0.1), **changes}
    return create().build(Job(**{"model": model(), **job}), Plan(), Place())


def trained(driver):
    driver.begin_update()
    batch = (np.ones((2, 2), np.float32), np.ones((2, 3), np.float32))
    driver.forward_backward(MicroBatch(0, batch, 2), scale=0.5, seed=1, ready=lambda bucket: None)
    driver.apply(lr_factor=1.0, used=driver.finish_update().used)
    return driver


def test_specs_say_what_there_is():
    specs = replica().tensors()
    assert specs[0] == TensorSpec("in/kernel", (2, 3), "float32")
    assert [(s.name, s.role, s.trainable, s.sync) for s in specs[1:]] == [
        ("in/bias", "parameter", True, "first"),
        ("norm/gamma", "parameter", True, "first"),
        ("norm/beta", "parameter", True, "first"),
        ("norm/moving_mean", "buffer", False, "mean"),
        ("norm/moving_variance", "buffer", False, "mean"),
    ]


def test_slots_appear_with_the_first_step_and_can_be_written_before():
    driver = trained(replica())
    slots = {spec.name: spec for spec in driver.tensors() if spec.role == "slot"}
    assert slots["in/kernel/exp_avg"].shape == (2, 3)
    values = driver.read(list(slots))
    other = replica()
    other.write(values)
    for name, value in other.read(list(slots)).items():
        assert np.array_equal(value, values[name])


def test_what_is_read_is_a_copy_and_what_is_written_is_copied():
    driver = replica()
    (value,) = driver.read(["in/kernel"]).values()
    value[...] = 5.0
    assert not (driver.read(["in/kernel"])["in/kernel"] == 5.0).any()
    driver.write({"in/kernel": value})
    value[...] = 6.0
    assert (driver.read(["in/kernel"])["in/kernel"] == 5.0).all()


def test_memory_that_is_written_from_is_never_the_variables_own():
    """TensorFlow 2.6 takes aligned arrays as they lie; a ring slot would rewrite the weights."""
    raw = np.zeros(64 + 24, np.uint8)
    start = -raw.ctypes.data % 64
    aligned = raw[start : start + 24].view(np.float32).reshape(2, 3)
    driver = replica()
    driver.write({"in/kernel": aligned})
    aligned[...] = 3.0
    assert not driver.read(["in/kernel"])["in/kernel"].any()


def test_wrong_names_and_shapes_are_refused_before_anything_is_written():
    driver = replica()
    before = driver.read(["in/bias"])["in/bias"]
    ones = np.ones(3, np.float32)
    with pytest.raises(ConfigError, match=r"in/kernel.*\[2, 3\], got \[3, 2\]"):
        driver.write({"in/bias": ones, "in/kernel": np.ones((3, 2))})
    with pytest.raises(ConfigError, match=r"no tensor 'in/kernal'; did you mean 'in/kernel'"):
        driver.write({"in/bias": ones, "in/kernal": np.ones((2, 3))})
    with pytest.raises(ConfigError, match="no slot 'in/kernel/unheard_of'"):
        driver.write({"in/kernel/unheard_of": np.ones((2, 3))})
    with pytest.raises(ConfigError, match="did you mean 'in/bias'"):
        driver.read(["in/bais"])
    assert np.array_equal(driver.read(["in/bias"])["in/bias"], before)


def test_a_variable_under_two_names_is_tied_to_the_first():
    shared = layers.Dense(2, use_bias=False)
    inner = [keras.Sequential([shared]), keras.Sequential([shared])]
    native = keras.Sequential([keras.Input((2,)), *inner])
    named = named_variables(native)
    first, second = Catalog(named, None).specs()
    assert first.tied_to is None
    assert second.tied_to == "sequential/dense/kernel"
    assert list(trainable_variables(named, native)) == ["sequential/dense/kernel"]


def test_frozen_layers_and_unnamed_parameters_are_not_trained():
    native = model()
    native.layers[-1].trainable = False
    assert [s.name for s in replica(model=native).tensors() if s.trainable] == [
        "in/kernel",
        "in/bias",
    ]
    only = replica(trainable="in/bias")
    assert [s.name for s in only.tensors() if s.trainable] == ["in/bias"]
    assert not any(s.trainable for s in replica(optimizer=None).tensors())


class Wraps(tf.Module):  # type: ignore[misc]  # of no known type
    """Holds a Keras layer, into which TensorFlow does not look if it is one of Keras 3."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [layers.Dense(3, name="dense")]
        self.inner[0].build((None, 2))
        self.scale = tf.Variable([1.0])

    def __call__(self, x: Any) -> Any:
        return self.inner[0](x) * self.scale


def test_keras_layers_inside_a_module_are_trained_too():
    native = Wraps()
    before = [np.array(w) for w in native.inner[0].get_weights()]
    driver = trained(replica(model=native))
    assert [s.name for s in driver.tensors() if s.trainable] == [
        "inner/0/kernel",
        "inner/0/bias",
        "scale",
    ]
    assert not any(np.array_equal(a, b) for a, b in zip(native.inner[0].get_weights(), before))

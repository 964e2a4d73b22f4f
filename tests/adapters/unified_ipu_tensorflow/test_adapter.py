from __future__ import annotations

import random
import subprocess
import sys
from importlib import metadata
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from unified_ipu.adapter import Adapter, Capability, Job, Place, Replica, optim
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu.plan import Plan, flat_fields
from unified_ipu_tensorflow import create
from unified_ipu_tensorflow.adapter import TensorflowAdapter
from unified_ipu_tensorflow.lower import HOST_FIELDS, lower

pytestmark = pytest.mark.timeout(120)

keras: Any = tf.keras
layers: Any = tf.keras.layers
VERSION_OF_KERAS = metadata.version("keras")
MSE = keras.losses.MeanSquaredError()


def model(*extra):
    return keras.Sequential([keras.Input((2,)), layers.Dense(2), *extra])


def build(native, plan=None, place=None, **job):
    job = {"loss": MSE, "optimizer": optim.SGD(0.1), **job}
    return create().build(Job(native, **job), plan or Plan(), place or Place())


def test_it_is_an_adapter_that_declares_every_capability():
    adapter = create()
    assert isinstance(adapter, Adapter)
    assert set(adapter.support) == set(Capability)
    assert isinstance(build(model()), Replica)


def test_creating_it_and_asking_it_imports_no_framework():
    code = (
        "import sys; import unified_ipu_tensorflow; a = unified_ipu_tensorflow.create(); "
        "assert not a.accepts(object()); a.seed(1); assert a.denominator(None) is None; "
        "assert not a.owns_schedule(abs); "
        "from unified_ipu.plan import Plan; from unified_ipu.world import Place; "
        "a.lower(Plan(), 'cpu')\n"
        "with a.scope(Plan(), Place()): pass\n"
        "assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_doctor_is_told_which_tensorflow_this_is():
    facts = TensorflowAdapter().facts()
    assert facts == {"tensorflow": metadata.version("tensorflow-cpu"), "keras": VERSION_OF_KERAS}


@pytest.mark.parametrize(
    ("built", "said"),
    [
        ({"is_cuda_build": True, "cuda_version": "12.5.1"}, "CUDA 12.5.1"),
        ({"is_cuda_build": True, "is_rocm_build": False}, "CUDA of unknown version"),
        ({"is_cuda_build": False, "is_rocm_build": True}, "ROCm"),
    ],
)
def test_the_doctor_is_told_for_which_devices_it_was_built(built, said, monkeypatch):
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: built)
    assert TensorflowAdapter().facts()["built for"] == said


class Module(tf.Module):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([1.0])

    def __call__(self, x):
        return x * self.weight


def test_it_accepts_what_has_trainable_variables_and_can_be_called():
    adapter = create()
    assert adapter.accepts(model())
    assert adapter.accepts(layers.Dense(1))
    assert adapter.accepts(Module())
    assert adapter.accepts(keras.Sequential([layers.Dense(1)]))  # without variables yet
    assert not adapter.accepts(MSE)
    assert not adapter.accepts(Module)
    assert not adapter.accepts(tf.Module())
    assert not adapter.accepts(lambda x: x)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_lower_knows_every_field_of_the_plan(target):
    fields = {name for name in flat_fields(Plan()) if not name.startswith("ipu.")}
    assert set(HOST_FIELDS) == fields
    lowering = create().lower(Plan(seed=7), target)
    assert lowering.refused == ()
    assert lowering.settings == {
        "device": target,
        "tf.random.set_seed": 7,
        "tf.config.experimental.enable_op_determinism": False,
        "keras.mixed_precision": "float32",
        "stages": 1,
        "rows of forward": 16,
    }


def test_lower_refuses_what_is_not_built():
    refused = create().lower(Plan().replace({"mesh.stage": 2}), "cpu").refused
    assert [path for path, _ in refused] == ["mesh.stage"]


def test_mixed_precision_is_a_dtype_policy_of_keras():
    lowering = create().lower(Plan().replace({"precision.compute": "bfloat16"}), "cpu")
    assert lowering.refused == ()
    assert lowering.settings["keras.mixed_precision"] == "mixed_bfloat16"


def test_deterministic_kernels_are_refused_where_they_cannot_be_switched_on():
    assert lower(Plan(deterministic=True), "cpu").refused == ()
    ((path, why),) = lower(Plan(deterministic=True), "cpu", can_repeat=False).refused
    assert path == "deterministic"
    assert "TensorFlow 2.8" in why
    assert lower(Plan(), "cpu", can_repeat=False).refused == ()


def test_ipus_cannot_be_built_for_without_the_sdk():
    with pytest.raises(CapabilityError, match=r"no tensorflow\.python\.ipu; install the wheel"):
        build(model(), Plan(target="ipu").replace({"batch.remainder": "pad"}))


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="says what happens without a device"
)
def test_cuda_without_a_device_is_refused():
    assert create().targets() == ("cpu", "ipu-emulated")
    with pytest.raises(CapabilityError, match="no GPU"):
        build(model(), Plan(target="cuda"))


def test_scope_makes_the_same_weights_for_one_seed_and_leaves_pythons_random_numbers():
    adapter = create()
    state = random.getstate()
    weights = []
    for seed in (1, 1, 2):
        with adapter.scope(Plan(seed=seed), Place()):
            weights.append(model().get_weights()[0])
    assert random.getstate() == state
    assert np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


def test_what_is_no_model_is_refused():
    with pytest.raises(ConfigError, match="expected a Keras model"):
        build(object())


def test_layers_that_see_the_micro_batch_are_named():
    extra = [layers.BatchNormalization(name="norm"), layers.Dropout(0.1, name="drop")]
    notes = build(model(*extra, layers.Dropout(0.2))).notes
    assert len(notes) == 2
    assert "'norm'" in notes[0]
    assert "'drop' and 1 more" in notes[1]
    assert build(model(layers.Dropout(0.0))).notes == ()


def test_layers_that_would_reduce_by_themselves_are_refused_on_several_replicas():
    norm = layers.BatchNormalization(name="norm")
    norm.synchronized = True
    build(model(norm))
    with pytest.raises(ConfigError, match="'norm' has synchronized=True"):
        build(model(norm), place=Place(num_replicas=2))


def test_layers_in_half_precision_are_refused_by_name():
    half = layers.Dense(2, dtype="mixed_float16", name="half")
    with pytest.raises(CapabilityError, match="'half' computes in float16"):
        build(model(half))


def test_deterministic_kernels_are_on_while_a_program_is_open():
    if not hasattr(tf.config.experimental, "enable_op_determinism"):
        with pytest.raises(CapabilityError, match="set it to false, or upgrade"):
            build(model(), Plan(deterministic=True))
        return
    from tensorflow.python.framework import config

    first = build(model(), Plan(deterministic=True))
    second = build(model(), Plan(deterministic=True))
    first.close()
    assert config.is_op_determinism_enabled()
    second.close()
    assert not config.is_op_determinism_enabled()


def test_denominators_are_told_in_words():
    adapter = create()
    assert adapter.denominator(MSE)
    assert adapter.denominator(lambda outputs, targets: outputs) is None


def test_keras_on_another_backend_is_left_to_others(monkeypatch):
    native = model()
    if not hasattr(keras, "config"):  # Keras 2 has one backend
        return
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    assert not create().accepts(native)

"""A script in the SDK's own words, run by ``unified-ipu run --emulate``."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from unified_ipu.launch import emulated
from unified_ipu_tensorflow.emulated import install, ipu

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import sys
import numpy as np
from tensorflow import keras
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    line = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), line])
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    model.compile(keras.optimizers.SGD(0.001), "mse", steps_per_execution=2)
    x = np.arange(1.0, 17.0, dtype="float32")[:, None]
    model.fit(x, 0 * x, batch_size=4, shuffle=False, verbose=0)
print(sys.argv[1:], round(float(model.get_weights()[0][0, 0]), 3), ipu.__emulated__)
"""


def test_a_script_of_ipu_keras_runs_as_it_is(tmp_path, monkeypatch, capsys):
    point = SimpleNamespace(value="unified_ipu_tensorflow.emulated:install", load=lambda: install)
    monkeypatch.setattr(
        "unified_ipu.adapter.registered", lambda group: {"tensorflow.python.ipu": point}
    )
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    holders: Any = (sys.modules["tensorflow.python"], sys.modules["keras"], tf.keras)
    for holder in holders:
        monkeypatch.setattr(holder, "ipu", None, raising=False)
    monkeypatch.delattr(holders[0], "ipu")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    ipu.config.reset_ipu_configuration()
    with mock.patch.dict(sys.modules):
        assert emulated.run_emulated(str(path), ["a"]) == 0
    # Means of two replicas and two steps are summed: 4 x 187, times the rate.
    assert capsys.readouterr().out == "['a'] 0.252 True\n"

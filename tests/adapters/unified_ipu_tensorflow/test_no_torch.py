"""Keras trains on several ranks of one host where torch is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.timeout(200), pytest.mark.slow]

# Read by every Python that starts with this folder on PYTHONPATH, before anything else.
WITHOUT_TORCH = """
import importlib.machinery
import sys

class WithoutTorch(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            return None
        return super().find_spec(name, path, target)

place = sys.meta_path.index(importlib.machinery.PathFinder)
sys.meta_path[place] = WithoutTorch
"""

SCRIPT = """
import importlib.util
import json
import sys

import numpy as np
import tensorflow as tf

import unified_ipu as ui

keras = tf.keras
rng = np.random.default_rng(0)
x = rng.standard_normal((96, 5)).astype(np.float32)
y = (x @ rng.standard_normal((5, 3))).argmax(axis=1)

with ui.Session() as session:
    assert importlib.util.find_spec("torch") is None
    with session.scope():
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(16, activation="tanh")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    program = session.compile(
        model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=ui.optim.Adam(lr=0.05),
    )
    train = session.loader(ui.data.arrays(x, y))
    test = session.loader(ui.data.arrays(x, y), train=False)
    metrics = {"accuracy": ui.metrics.accuracy}
    summary = program.fit(
        train, epochs=8, validation=test, metrics=metrics, checkpoint=sys.argv[1]
    )
    outputs = program.predict(test)
    found = {
        "ranks": session.world_size,
        "torch": "torch" in sys.modules,
        "accuracy": summary.validation["accuracy"],
        "certificates": [str(epoch.certificate) for epoch in summary.epochs],
        "weights": {name: value.tolist() for name, value in program.weights().items()},
    }
    if session.is_first:
        found["predicted"] = float((outputs.argmax(axis=1) == y).mean())
    for one in session.gather(np.frombuffer(json.dumps(found).ljust(20000).encode(), np.uint8)):
        session.print("RESULT " + bytes(one).decode().strip())
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each rank found, by the number of ranks."""
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(WITHOUT_TORCH, encoding="utf-8")
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    found = {}
    for size in (1, 2):
        command = [sys.executable, "-m", "unified_ipu.cli.main", "run"]
        command += ["--set", f"mesh.data={size}", "--set", "batch.global_batch_size=24"]
        command += ["--set", "batch.micro_batch_size=7"]
        command += [str(folder / "train.py"), str(folder / f"run{size}")]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
            cwd=folder,
            env=environment,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        found[size] = [json.loads(line[len("RESULT ") :]) for line in lines]
        assert (folder / f"run{size}" / "latest").exists()
    return found


def test_two_ranks_train_without_torch(results):
    assert [result["ranks"] for result in results[2]] == [2, 2]
    for result in results[2]:
        assert not result["torch"]
        assert result["accuracy"] > 0.9
        assert result["certificates"] == ["96 of 96 samples, each once"] * 8
    assert results[2][0]["predicted"] == results[2][0]["accuracy"]


def test_two_ranks_have_the_same_weights_and_those_of_one(results):
    first, second = (result["weights"] for result in results[2])
    assert first == second
    (alone,) = results[1]
    for name, value in alone["weights"].items():
        expected = np.array(value)
        error = np.linalg.norm(np.array(first[name]) - expected) / np.linalg.norm(expected)
        assert error < 1e-4, name

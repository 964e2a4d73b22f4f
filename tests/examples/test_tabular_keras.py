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

EXAMPLE = Path(__file__).parents[2] / "examples" / "tabular_keras"


@pytest.fixture(scope="module")
def tumours():
    spec = importlib.util.spec_from_file_location("tabular_tumours", EXAMPLE / "tumours.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_measurements_are_split_by_class_and_scaled_by_what_is_trained_on(tumours):
    (train_values, train_labels), (test_values, test_labels) = tumours.load_tumours()
    assert train_values.shape == (456, 30)
    assert test_values.shape == (113, 30)
    assert train_values.dtype == test_values.dtype == np.float32
    assert np.bincount(train_labels).tolist() == [170, 286]
    assert np.bincount(test_labels).tolist() == [42, 71]
    assert train_values.mean(axis=0) == pytest.approx(np.zeros(30), abs=1e-5)
    assert train_values.std(axis=0) == pytest.approx(np.ones(30), rel=1e-5)
    rows = {row.tobytes() for row in train_values}
    assert not any(row.tobytes() in rows for row in test_values)


def test_an_absent_table_is_an_error_with_the_command_that_helps(tumours, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps scikit-learn=="):
        tumours.find_table()


def test_finding_the_table_imports_nothing_of_its_package(tumours):
    assert tumours.find_table().exists()
    assert "sklearn" not in sys.modules


def test_the_model_comes_from_a_module_that_does_not_know_us():
    assert "import unified_ipu" not in (EXAMPLE / "model.py").read_text(encoding="utf-8")


SAMPLE = """
import json, sys
sys.path.insert(0, {folder!r})
import torch, pipeline
rows = pipeline.train()
def sample(index, seed):
    torch.manual_seed(seed)
    values, label = rows[index]
    return values, int(label)
first, again, other = sample(7, 1), sample(7, 1), sample(7, 2)
print(json.dumps(dict(
    size=len(rows), shape=list(first[0].shape), label=[first[1], other[1], int(rows.labels[7])],
    same=bool((first[0] == again[0]).all()),
    noise=float((first[0] - rows.values[7]).std() / pipeline.NOISE),
    differs=float((first[0] - other[0]).abs().mean()),
    tensorflow="tensorflow" in sys.modules,
)))
"""


@pytest.mark.slow
def test_a_row_gets_the_noise_of_its_seed():
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE.format(folder=str(EXAMPLE))],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["size"], result["shape"]) == (456, [30])
    assert len(set(result["label"])) == 1
    assert result["same"]
    assert result["differs"] > 0.01
    assert 0.5 < result["noise"] < 1.5
    assert not result["tensorflow"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_example_trains_on_two_replicas_and_uses_each_sample_once(tmp_path):
    command = [sys.executable, "-m", "unified_ipu.cli.main", "run", "--set", "mesh.data=2"]
    command += [str(EXAMPLE / "train.py"), "--epochs", "3"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "456 of 456 samples, each once" in done.stdout
    assert "on 2 replicas" in done.stdout
    accuracy = re.search(r"test accuracy (0\.\d+)", done.stdout)
    assert accuracy is not None, done.stdout
    # After 3 epochs of 20; always saying benign is 0.63.
    assert float(accuracy.group(1)) > 0.85
    assert list(tmp_path.iterdir()) == []

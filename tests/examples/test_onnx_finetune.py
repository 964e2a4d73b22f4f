"""The example exports a network, fine-tunes the file, and what comes out runs by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_finetune"


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(str(path)).graph.initializer}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_network_is_exported_and_fine_tuned_on_two_replicas(tmp_path):
    command = [sys.executable, "-m", "unified_ipu.cli.main", "run", "--set", "mesh.data=2"]
    command += [str(EXAMPLE / "train.py"), "--epochs", "1", "--folder", "files"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("on 2 replicas") == 2
    found = re.search(r"test accuracy (0\.\d+) before, (0\.\d+) after", done.stdout)
    alone = re.search(r"in onnxruntime alone: test accuracy (0\.\d+)", done.stdout)
    assert found is not None, done.stdout
    assert alone is not None, done.stdout
    before, after, deployed = map(float, (*found.groups(), alone.group(1)))
    assert 0.5 < before < after  # guessing is 0.1
    assert after > 0.88
    assert deployed == after
    assert sorted(file.name for file in tmp_path.iterdir()) == ["files"]
    exported = weights(tmp_path / "files" / "digits.onnx")
    tuned = weights(tmp_path / "files" / "tuned.onnx")
    assert list(exported) == list(tuned)
    for name in ("features.0.weight", "classifier.4.bias"):
        assert exported[name].shape == tuned[name].shape
        assert exported[name].tobytes() != tuned[name].tobytes()

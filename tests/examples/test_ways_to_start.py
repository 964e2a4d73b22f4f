"""The example under another launcher, alone, and started in a way that cannot work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_mixed"
TRAIN = str(EXAMPLE / "train.py")


def run(command, folder):
    """Return the finished process; without colours, one thread, no variables of other runs."""
    environment = {key: value for key, value in os.environ.items() if "UNIFIED_IPU" not in key}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        cwd=folder,
        env=environment,
    )


def first_loss(text):
    """Return the loss of the first epoch, all printed digits."""
    found = re.search(r"epoch 1/1: loss (\d+\.\d+)", text)
    assert found is not None, text
    return float(found.group(1))


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_torchrun_and_plain_python_train_the_same(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run([*torchrun, TRAIN, "--epochs", "1"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 epoch on 2 replicas" in done.stdout
    assert "4000 of 4000 samples, each once" in done.stdout
    alone = run([sys.executable, TRAIN, "--epochs", "1"], tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert "1 epoch on 1 replica," in alone.stdout
    assert first_loss(done.stdout) == pytest.approx(first_loss(alone.stdout), abs=2e-4)


def test_a_plan_for_two_replicas_without_a_launcher_shows_the_command(tmp_path):
    done = run([sys.executable, TRAIN, "--set", "mesh.data=2"], tmp_path)
    assert done.returncode == 1
    assert f"unified-ipu run --set mesh.data=2 {TRAIN}" in done.stderr

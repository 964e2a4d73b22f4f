"""The example on the emulated device, by the session and as a written script, against the host."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unified_ipu.cli.main import main

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mnist_mixed" / "train.py"
SETTINGS = ["batch.micro_batch_size=8", "batch.remainder=pad", "batch.updates_per_call=5"]
DEVICE = ["ipu.replicas_per_process=2"]

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    found: Path = tmp_path_factory.mktemp("devices")
    return found


@pytest.fixture(scope="module")
def compared(folder: Path) -> Any:
    program = Path(__file__).with_name("mnist_on_devices.py")
    done = subprocess.run(
        [sys.executable, str(program), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    """The example's own script, lowered for two replicas: A = 4, B = 8, D = 5."""
    path = folder / "native_train.py"
    words = [word for each in [*SETTINGS, *DEVICE] for word in ("--set", each)]
    command = ["lower", "--write", str(path), *words, str(EXAMPLE)]
    assert main([*command, "--dropout", "0", "--epochs", "1"]) == 0
    return path


def test_l5_fifty_updates_on_the_device_are_those_of_the_host(compared):
    assert compared["equal"]
    assert compared["fifty"] < 1e-4


def test_l5_the_last_call_of_an_epoch_is_one_of_three_updates_from_any_state(compared):
    device, host = compared["last_records"]
    assert device == host == [[160, 160.0, 3, 0.1]]
    assert compared["last_call"] < 5e-5


def test_l5_the_last_update_has_32_rows_and_32_of_padding_that_count_nothing(compared):
    device, host = compared["last_update_records"]
    assert device == host == [[32, 32.0, 1, 0.1]]
    assert compared["last_update"] < 5e-5


def test_the_written_script_is_formatted_text_that_imports_nothing_of_ours(written):
    text = written.read_text()
    compile(text, str(written), "exec")
    imported = [
        getattr(node, "module", None) or node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert not [name for name in imported if name.startswith("unified_ipu")]
    for line in (
        "self.model = Trained(Net(dropout=0.0))",
        "options.Training.gradientAccumulation(4)  # batch.global_batch_size",
        "options.replicationFactor(2)  # ipu.replicas_per_process",
        "options.deviceIterations(updates)  # batch.updates_per_call",
        "self.program.setOptimizer(self.optimizer)",
        "from pipeline import train",
        "UPDATES = 63  # of an epoch; 32 rows of weight 0 complete the last (batch.remainder)",
        "Not written of fit: validation=, metrics=.",
    ):
        assert line in text
    page = (ROOT / "docs" / "eject.md").read_text("utf-8")
    shown = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 3
    flat = "\n".join(line.strip() for line in text.splitlines())
    for code in shown:
        assert "\n".join(line.strip() for line in code.splitlines()) in flat
    for width in ("88", "100"):
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check"]
        done = subprocess.run(
            [*command, "--line-length", width, str(written)], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_l5_the_written_script_trains_under_emulation_as_the_host_does(compared, written, folder):
    assert compared["equal"]
    text = written.read_text().replace("UPDATES = 63", "UPDATES = 7", 1)
    assert "\nUPDATES = 7 " in text
    short = folder / "short.py"
    short.write_text(text)
    command = [sys.executable, "-m", "unified_ipu.cli.main", "run", "--emulate", str(short)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # small convolutions, few free cores
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"^epoch 0: loss \d\.\d+ an update$", done.stdout, re.MULTILINE)
    found = torch.load(folder / "native_train.pt", weights_only=True)
    with np.load(folder / "seven.npz") as expected:
        apart = sum(float(((found[n].numpy() - expected[n]) ** 2).sum()) for n in expected)
        whole = sum(float((expected[n] ** 2).sum()) for n in expected)
        assert sorted(found) == sorted(expected)
    assert np.sqrt(apart / whole) < 1e-4

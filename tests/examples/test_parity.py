"""The same network in several frameworks, apart and in one world; and what counts as the same."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    """Load a module of the example under a name that nothing else has."""
    path = EXAMPLES / "parity" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"parity_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables():
    return load("tables")


def run_of(dtype="float32", *, change=0.0, drift=0.0):
    """Weights of a made-up run; ``change`` and ``drift`` are relative errors put in."""
    start = np.array([3.0, 4.0], dtype)
    first = start - np.array([1.0, 0.0], dtype) * dtype_of(dtype)(1.0 + change)
    last = np.array([6.0, 8.0], dtype) * dtype_of(dtype)(1.0 + drift)
    return {"0/w": start, "1/w": first, "50/w": last, "0/b": start, "1/b": first, "50/b": last}


def dtype_of(dtype):
    return np.dtype(dtype).type


def test_equal_runs_are_close(tables):
    comparison = tables.compare(run_of(), run_of())
    assert comparison.is_close
    assert comparison.largest == 0.0
    assert str(comparison).endswith("largest relative difference 0.0e+00: within rounding")


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        ("float32", {"change": 1e-4}),
        ("float32", {"drift": 2e-4}),
        ("float64", {"change": 1e-11}),
        ("float64", {"drift": 1e-11}),
    ],
)
def test_a_difference_above_rounding_fails_and_is_shown(tables, dtype, wrong):
    comparison = tables.compare(run_of(dtype, **wrong), run_of(dtype))
    assert not comparison.is_close
    assert comparison.largest == pytest.approx(next(iter(wrong.values())), rel=0.01)
    assert "MORE THAN ROUNDING" in str(comparison)
    small = {name: value / 10 for name, value in wrong.items()}
    assert tables.compare(run_of(dtype, **small), run_of(dtype)).is_close or dtype == "float64"


def test_nothing_moved_where_the_reference_moved_is_a_difference_of_1(tables):
    run = run_of()
    run["1/w"] = run["0/w"]
    comparison = tables.compare(run, run_of())
    assert (comparison.largest, comparison.is_close) == (1.0, False)


def test_other_tensors_cannot_be_compared(tables):
    run = run_of()
    run["50/w"] = run["50/w"].reshape(1, 2)
    with pytest.raises(ValueError, match="other tensors"):
        tables.compare(run, run_of())


def test_initial_weights_depend_on_names_and_shapes_only():
    networks = load("networks")
    form = {"b": np.zeros(3, np.float32), "a": np.zeros((2, 3), np.float32)}
    first = networks.initial_weights(form)
    again = networks.initial_weights(dict(reversed(form.items())))
    assert all(np.array_equal(first[name], again[name]) for name in form)
    assert {name: value.dtype for name, value in first.items()} == {"a": "float32", "b": "float32"}


def run(*command, folder):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
    )


def check_table(text, tensors, bound):
    rows = re.findall(r"^(\S+\.(?:weight|bias)) +\[.*\] +(\S+) +(\S+)$", text, re.MULTILINE)
    assert len(rows) == tensors
    largest = re.findall(r"\nlargest relative difference (\S+): within rounding\n", text)
    assert len(largest) == 1
    assert float(largest[0]) < bound


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_l5_three_frameworks_train_the_same_apart(tmp_path):
    script = str(EXAMPLES / "parity" / "parity.py")
    done = run(script, "--model", "mlp", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    head, keras, onnx = re.split(r"\nmlp: (?:keras|onnx) against torch", done.stdout)
    assert "largest" not in head
    for table in (keras, onnx):
        assert table.startswith(", 2 replicas each\n")
        check_table(table, 6, 5e-5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_l5_ranks_of_three_frameworks_train_as_torch_alone(tmp_path):
    script = str(EXAMPLES / "mixed_world" / "train.py")
    command = ["-m", "unified_ipu.cli.main", "run", script, "--dtype", "float64"]
    done = run(*command, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, framework in enumerate(("torch", "keras", "onnx")):
        assert f"rank {rank} trains in {framework}" in done.stdout
    assert "convnet: 3 ranks together against one in torch alone" in done.stdout
    check_table(done.stdout, 8, 1e-12)
    assert list(tmp_path.iterdir()) == []

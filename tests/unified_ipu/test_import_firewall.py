"""Importing any of the packages imports no framework, not even through importlib."""

from __future__ import annotations

import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import unified_ipu

FRAMEWORKS = (
    "torch", "poptorch", "tensorflow", "keras", "onnx", "onnxruntime", "popart", "popxl", "jax",
    "pytest",
)  # fmt: skip
# Heavy, and needed only by some: they are imported late, inside functions.
LATE = ("tqdm", "multiprocessing", "safetensors", "tomli", "rich", "cloudpickle")
PACKAGES = ("unified_ipu", "unified_ipu_torch", "unified_ipu_tensorflow", "unified_ipu_onnx")


def run_poisoned(code, *, names):
    """Run ``code`` in a process where importing one of ``names`` fails."""
    poison = "; ".join(f"sys.modules[{name!r}] = None" for name in names)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; {poison}\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def core_modules():
    """Name every module of the core that users' processes import; the kit needs pytest."""
    folder = str(Path(unified_ipu.__file__).parent)
    return sorted(
        module.name
        for module in pkgutil.walk_packages([folder], "unified_ipu.")
        if not module.name.startswith("unified_ipu.testing")
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_needs_no_framework(package):
    done = run_poisoned(f"import {package}", names=FRAMEWORKS + LATE)
    assert done.returncode == 0, done.stderr


def test_importing_the_core_loads_what_starts_processes_and_no_more():
    code = (
        "import unified_ipu\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('unified_ipu.')}\n"
        "assert rooms == {'errors', 'launch', 'plan', 'world'}, sorted(rooms)"
    )
    done = run_poisoned(code, names=FRAMEWORKS + LATE)
    assert done.returncode == 0, done.stderr


def test_every_module_of_the_core_needs_no_framework():
    assert "unified_ipu.plan.plan" in core_modules()
    code = "import importlib\nfor name in {!r}:\n    importlib.import_module(name)"
    done = run_poisoned(code.format(core_modules()), names=FRAMEWORKS)
    assert done.returncode == 0, done.stderr


def test_listing_adapters_imports_none_of_them():
    code = (
        "from unified_ipu.adapter import available_adapters\n"
        "names = available_adapters()\n"
        "assert 'torch' in names, names\n"
        "assert 'unified_ipu_torch' not in sys.modules"
    )
    done = run_poisoned(code, names=FRAMEWORKS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "import torch",
        "import torch.nn",
        "import importlib; importlib.import_module('torch')",
        "def f():\n    from torch import nn\nf()",
    ],
)
def test_the_poison_catches_a_planted_import(statement):
    done = run_poisoned(statement, names=FRAMEWORKS)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_nothing_imports_the_folder_of_adapters():
    # A second copy of every adapter's classes would come with it.
    assert not Path("adapters/__init__.py").exists()
    assert "adapters" not in sys.modules


def test_the_packages_are_installed_where_the_tests_can_see_them():
    assert all(importlib.util.find_spec(package) is not None for package in PACKAGES)

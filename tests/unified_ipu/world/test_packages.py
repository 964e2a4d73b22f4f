"""Bad pairs of packages are found before they crash, by versions alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from unified_ipu.world import Packages, conflicts, installed_packages


def found(versions, **options):
    return {conflict.packages: conflict for conflict in conflicts(Packages(versions), **options)}


def test_tensorflow_beside_a_torch_with_triton_may_end_the_process():
    pair = {"tensorflow": "2.21.0", "torch": "2.13.0", "triton": "3.9.0"}
    conflict = found(pair)["tensorflow", "torch", "triton"]
    assert conflict.is_fatal
    assert "SIGSEGV" in conflict.problem
    assert "CPU build of torch" in conflict.change


@pytest.mark.parametrize(
    "versions",
    [
        {"tensorflow": "2.21.0", "torch": "2.13.0"},
        {"tensorflow": "2.19.1", "torch": "2.13.0", "triton": "3.9.0"},
        {"tensorflow": "2.21.0", "triton": "3.9.0"},
        {"torch": "2.13.0", "triton": "3.9.0", "numpy": "2.4.6"},
        {"torch": "2.0.1", "tensorflow": "2.6.3", "numpy": "1.19.5"},
    ],
)
def test_what_goes_together_is_no_conflict(versions):
    assert not found(versions)


def test_frameworks_of_numpy_1_are_named_beside_numpy_2():
    versions = {"numpy": "2.0.1", "torch": "2.2.9", "tensorflow-cpu": "2.17.0"}
    assert set(found(versions)) == {("tensorflow-cpu", "numpy"), ("torch", "numpy")}
    assert found(versions)["torch", "numpy"].change == "install numpy<2, or torch 2.3 or later"
    assert not found({"numpy": "2.0.1", "torch": "2.3.0", "tensorflow": "2.18.0"})


def test_two_openmp_runtimes_are_named():
    assert ("intel-openmp", "torch") in found({"intel-openmp": "2025.0", "torch": "2.13.0"})


def test_packages_that_only_share_a_name_with_graphcores_are_named():
    versions = {"popart": "0.1", "poplar": "1.0"}
    assert set(found(versions)) == {("popart",), ("poplar",)}
    assert not found(versions, has_sdk=True)


def test_the_version_of_a_local_build_is_read():
    packages = Packages({"torch": "2.13.0+cpu"})
    assert packages.release("torch") == (2, 13)
    assert packages.release("tensorflow") is None


def test_looking_imports_no_framework():
    code = (
        "import sys; from unified_ipu.world import installed_packages as look; look(); "
        "print(sorted({'torch', 'tensorflow', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
    assert "numpy" in installed_packages().versions

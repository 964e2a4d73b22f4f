"""Which Python packages are installed, and which of them do not go together. Imports none."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from importlib import metadata
from typing import FrozenSet, List, Mapping, Optional, Tuple

KNOWN = (
    *("numpy", "torch", "triton", "tensorflow", "tensorflow-cpu", "keras", "onnx", "onnxruntime"),
    *("poptorch", "popart", "poplar", "intel-openmp", "mkl", "unified-ipu"),
)
MODULES = ("torch", "tensorflow", "onnx", "onnxruntime", "poptorch", "popart", "gcipuinfo")


@dataclass(frozen=True)
class Packages:
    """What is installed for one interpreter.

    Args:
        versions: By name of the distribution.
        modules: Top-level modules that would be found by an import.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    modules: FrozenSet[str] = frozenset()

    def release(self, name: str) -> Optional[Tuple[int, ...]]:
        """Major and minor version of a distribution, or None if it is not installed."""
        version = self.versions.get(name)
        if version is None:
            return None
        return tuple(int(part) for part in re.findall(r"\d+", version)[:2])

    @property
    def tensorflow(self) -> Optional[str]:
        """Name of the distribution that brings TensorFlow, or None."""
        return next((n for n in ("tensorflow", "tensorflow-cpu") if n in self.versions), None)


@dataclass(frozen=True)
class Conflict:
    """Packages that are installed together and do not go together.

    Args:
        packages: Their names.
        problem: What happens.
        change: What to do.
        is_fatal: Whether one process that uses both may end by a signal.
    """

    packages: Tuple[str, ...]
    problem: str
    change: str
    is_fatal: bool = False


def installed_packages() -> Packages:
    """Look at this interpreter; reads metadata and imports nothing."""
    versions = {name: version for name in KNOWN for version in _version(name)}
    found = frozenset(name for name in MODULES if importlib.util.find_spec(name) is not None)
    return Packages(versions, found)


def _version(name: str) -> List[str]:
    try:
        return [metadata.version(name)]
    except metadata.PackageNotFoundError:
        return []


def conflicts(packages: Packages, *, has_sdk: bool = False) -> Tuple[Conflict, ...]:
    """Return the known bad pairs among installed packages, before they crash.

    Args:
        packages: What is installed.
        has_sdk: Whether Graphcore's Poplar SDK is enabled in this shell.
    """
    found: List[Conflict] = []
    tensorflow, torch = packages.tensorflow, packages.versions.get("torch")
    brings_triton = torch is not None and "triton" in packages.versions
    if tensorflow is not None and brings_triton and (packages.release(tensorflow) or ()) >= (2, 20):
        found.append(
            Conflict(
                (tensorflow, "torch", "triton"),
                "a process that imports both may end with SIGSEGV",
                "install the CPU build of torch, which has no triton, or keep TensorFlow in the "
                'data process (data.isolate = "auto" or "always")',
                is_fatal=True,
            )
        )
    if "intel-openmp" in packages.versions and torch is not None:
        found.append(
            Conflict(
                ("intel-openmp", "torch"),
                "two OpenMP runtimes in one process may abort it, or start twice the threads",
                "uninstall intel-openmp and mkl, or use packages that share one runtime",
            )
        )
    found += _of_old_numpy(packages)
    for name in ("popart", "poplar"):
        if name in packages.versions and not has_sdk:
            found.append(
                Conflict(
                    (name,),
                    f"the package {name} of the public registry has nothing to do with Graphcore",
                    f"uninstall {name}; the real one comes with the Poplar SDK",
                )
            )
    return tuple(found)


def _of_old_numpy(packages: Packages) -> List[Conflict]:
    """Frameworks that were built for numpy 1 and are used with numpy 2.

    Source: the release notes of TensorFlow 2.18 and PyTorch 2.3, the first built for numpy 2.
    """
    if (packages.release("numpy") or ()) < (2, 0):
        return []
    found = []
    for name, first in ((packages.tensorflow, (2, 18)), ("torch", (2, 3))):
        release = None if name is None else packages.release(name)
        if name is not None and release is not None and release < first:
            found.append(
                Conflict(
                    (name, "numpy"),
                    f"{name} {packages.versions[name]} was built for numpy 1, numpy "
                    f"{packages.versions['numpy']} is installed: arrays cannot be exchanged",
                    f"install numpy<2, or {name} {first[0]}.{first[1]} or later",
                )
            )
    return found

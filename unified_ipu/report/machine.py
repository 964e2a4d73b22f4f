"""What the doctor looks at: one picture of a machine, so that tests can draw others."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from unified_ipu.adapter import available_adapters
from unified_ipu.comms import available_bytes
from unified_ipu.plan import Plan
from unified_ipu.world import (
    Packages,
    Processors,
    current_environment,
    installed_packages,
    usable_processors,
)

_SECONDS = 120
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
_SDK = ("POPLAR_SDK_ENABLED", "POPART_SDK_ENABLED", "IPUOF_VIPU_API_PARTITION_ID")


@dataclass(frozen=True)
class AdapterState:
    """What an adapter said of itself in a process of its own.

    Args:
        targets: Usable here, best first; empty if it cannot be used.
        error: Why it cannot be used, or empty.
        refused: ``{target: ((plan field, reason), ...)}`` of the plan asked about.
        facts: What else it tells of its framework, in words.
    """

    targets: Tuple[str, ...] = ()
    error: str = ""
    refused: Mapping[str, Tuple[Tuple[str, str], ...]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """A machine and an interpreter on it.

    Args:
        python: Version of the interpreter.
        system: Name of the operating system and of the architecture, ``"Linux x86_64"``.
        packages: What is installed.
        adapters: By name.
        processors: That this process may use.
        all_cpus: Hardware threads of the machine.
        threads: Settings of thread pools in the environment.
        memory_bytes: That can be had, or None if nothing says so.
        has_memfd: Whether memory can be shared without a name.
        start_method: Of ``multiprocessing``, as this process would use it.
        sdk: Variables of Graphcore's SDK in the environment.
        ipus: IPU devices that ``gc-inventory`` lists, or None where it is absent or fails.
    """

    python: Tuple[int, ...]
    system: str
    packages: Packages
    adapters: Mapping[str, AdapterState]
    processors: Processors
    all_cpus: int
    threads: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: Optional[int] = None
    has_memfd: bool = True
    start_method: str = "spawn"
    sdk: Mapping[str, str] = field(default_factory=dict)
    ipus: Optional[int] = None

    @property
    def has_sdk(self) -> bool:
        """Whether a Poplar SDK is enabled in this shell."""
        return "POPLAR_SDK_ENABLED" in self.sdk


def read_machine(plan: Plan, *, ask_adapters: bool = True) -> Machine:
    """Look at this machine; each adapter is asked in a process of its own.

    Args:
        plan: What the adapters are asked about.
        ask_adapters: False leaves them out, which takes no time.
    """
    environment = current_environment()
    names = available_adapters() if ask_adapters else ()
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        states = dict(zip(names, pool.map(partial(_ask_adapter, plan=plan), names)))
    return Machine(
        python=tuple(sys.version_info[:3]),
        system=f"{platform.system()} {platform.machine()}",
        packages=installed_packages(),
        adapters=states,
        processors=usable_processors(),
        all_cpus=os.cpu_count() or 1,
        threads={name: environment[name] for name in _THREADS if name in environment},
        memory_bytes=available_bytes(),
        has_memfd=_has_memfd(),
        start_method=multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0],
        sdk={name: environment[name] for name in _SDK if name in environment},
        ipus=_count_ipus(),
    )


def answer(name: str, plan: Plan) -> Dict[str, Any]:
    """What an adapter says of itself, as JSON values; run where a crash does no harm."""
    from unified_ipu.adapter import load_adapter
    from unified_ipu.errors import UnifiedIpuError

    try:
        adapter = load_adapter(name)
        targets = adapter.targets()
        refused = {target: adapter.lower(plan, target).refused for target in targets}
        facts: Dict[str, str] = getattr(adapter, "facts", dict)()
    except (UnifiedIpuError, ImportError) as error:
        return {"error": str(error)}
    return {"targets": targets, "refused": refused, "facts": facts}


def _ask_adapter(name: str, plan: Plan) -> AdapterState:
    command = [sys.executable, "-m", "unified_ipu.report.doctor_child", name]
    try:
        done = subprocess.run(  # noqa: S603  # a module of ours
            command,
            input=json.dumps(plan.to_dict()),
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return AdapterState(error=f"it did not answer within {_SECONDS} s")
    if done.returncode != 0:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        last = done.stderr.strip().splitlines()[-1:]
        return AdapterState(error=f"asking it ended with {how}: {' '.join(last)}")
    said = json.loads(done.stdout.splitlines()[-1])
    if "error" in said:
        return AdapterState(error=said["error"])
    refused = {t: tuple((f, why) for f, why in pairs) for t, pairs in said["refused"].items()}
    return AdapterState(tuple(said["targets"]), "", refused, said["facts"])


def _has_memfd() -> bool:
    if not hasattr(os, "memfd_create"):
        return False
    try:
        os.close(os.memfd_create("unified-ipu-doctor"))
    except OSError:
        return False
    return Path("/proc/self/fd").is_dir()


def _count_ipus() -> Optional[int]:
    """Devices in the JSON of ``gc-inventory -j``, whose top level has a list ``devices``."""
    program = shutil.which("gc-inventory")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  # found on the path
            [program, "-j"], capture_output=True, text=True, check=True, timeout=_SECONDS
        )
        devices: List[Any] = json.loads(done.stdout)["devices"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None
    return len(devices)

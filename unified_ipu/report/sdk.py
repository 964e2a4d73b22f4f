"""Whether Graphcore's Poplar SDK is there, and whether the packages beside it match it.

Source: the wheels and pins of Poplar SDK 3.3 and 3.4 (Python 3.8; torch 2.0.1; TensorFlow 2.6.3 as
``tensorflow`` with numpy 1.19), as the documents of PopTorch and of TensorFlow for IPU give them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Tuple

from unified_ipu.plan import Plan

if TYPE_CHECKING:
    from unified_ipu.report.machine import Machine

_PYTHON = (3, 8)
_PINS = (("torch", (2, 0)), ("tensorflow", (2, 6)), ("numpy", (1, 19)))
ENABLE = "source the SDK's poplar and popart `enable.sh` in this shell"


def sdk_problems(machine: Machine) -> Tuple[str, ...]:
    """Say what keeps an IPU from being used, one sentence each; empty if nothing does.

    Args:
        machine: As it was read.
    """
    if not machine.has_sdk:
        return (f"no Poplar SDK is enabled (POPLAR_SDK_ENABLED is not set): {ENABLE}",)
    found: List[str] = []
    if machine.python[:2] != _PYTHON:
        has = ".".join(map(str, machine.python[:2]))
        found.append(f"the SDK's wheels are for Python 3.8, this is {has}: use Python 3.8")
    modules = machine.packages.modules
    if not {"poptorch", "popart"} & modules and "tensorflow" not in modules:
        found.append(
            "none of poptorch, popart and the SDK's tensorflow can be imported: install its wheels"
        )
    for name, pinned in _PINS:
        release = machine.packages.release(name)
        if release is not None and release != pinned:
            wanted = ".".join(map(str, pinned))
            has = machine.packages.versions[name]
            found.append(f"{name} {has} is installed, the SDK was built for {wanted}")
    if machine.ipus is None:
        found.append("gc-inventory is absent or lists nothing: look at the driver and the SDK")
    elif machine.ipus == 0:
        found.append("gc-inventory lists no device: ask for IPUs, or for a partition")
    return tuple(found)


def missing_for_ipus() -> Tuple[str, ...]:
    """What keeps an IPU from being used in this process, in the doctor's words."""
    from unified_ipu.report.machine import read_machine  # it imports what few runs need

    return sdk_problems(read_machine(Plan(), ask_adapters=False))

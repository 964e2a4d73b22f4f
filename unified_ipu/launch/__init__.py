"""Starting ranks on this host and watching over them."""

from __future__ import annotations

from unified_ipu.launch.command import (
    OTHER_LAUNCHERS as OTHER_LAUNCHERS,
    launcher_command as launcher_command,
)
from unified_ipu.launch.emulated import run_emulated as run_emulated
from unified_ipu.launch.failure import write_all as write_all
from unified_ipu.launch.function import launch as launch
from unified_ipu.launch.group import end_groups as end_groups
from unified_ipu.launch.lifeline import hold_lifeline as hold_lifeline
from unified_ipu.launch.placement import (
    BINDINGS as BINDINGS,
    THREAD_VARIABLES as THREAD_VARIABLES,
)
from unified_ipu.launch.script import launch_script as launch_script

__all__ = [
    "BINDINGS",
    "OTHER_LAUNCHERS",
    "THREAD_VARIABLES",
    "end_groups",
    "hold_lifeline",
    "launch",
    "launch_script",
    "launcher_command",
    "run_emulated",
    "write_all",
]

"""Starting ranks on this host and watching over them."""

from __future__ import annotations

from unified_ipu.launch.function import launch as launch
from unified_ipu.launch.script import launch_script as launch_script

__all__ = ["launch", "launch_script"]

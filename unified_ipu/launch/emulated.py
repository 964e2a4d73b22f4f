"""``unified-ipu run --emulate``: a script of somebody else, with emulations in place of the SDK.

An adapter registers an emulation under the name of the module that it stands in for. Nothing of it
is imported before the script imports that module.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Optional, Sequence, Tuple

from unified_ipu.errors import ConfigError
from unified_ipu.launch.child import run_script
from unified_ipu.launch.failure import failure_of

GROUP = "unified_ipu.emulations"
SDK_MODULES = ("poptorch", "popart", "popdist")


def run_emulated(script: str, arguments: Sequence[str] = ()) -> int:
    """Run a script in this process, the SDK's modules being emulations.

    Args:
        script: Path of the file.
        arguments: Its own, untouched.

    Returns:
        Exit status: 0, or 1 if the script raised; a script that exits does so itself.

    Raises:
        ConfigError: If there is no such script, or the real SDK is here.
    """
    if not Path(script).is_file():
        raise ConfigError(f"{script}: no such script; give the path of a Python file")
    real = [name for name in SDK_MODULES if importlib.util.find_spec(name) is not None]
    if real:
        raise ConfigError(
            f"--emulate: {', '.join(real)} can be imported here; run the script with the real SDK, "
            "that is without --emulate, or use an environment without it"
        )
    sys.meta_path.insert(0, EmulationFinder())
    try:
        run_script(script, *arguments)
    except Exception as error:  # noqa: BLE001  # whatever the script raises is shown as Python would
        own = (__file__, run_script.__code__.co_filename, runpy.__file__, "<frozen runpy>")
        print(failure_of(error, rank=0, hide=own).traceback, end="", file=sys.stderr, flush=True)
        return 1
    return 0


class EmulationFinder(MetaPathFinder):
    """Finds a registered module by having its emulation installed into ``sys.modules``."""

    def __init__(self) -> None:
        # Late: `import unified_ipu` comes by here, and most of its time would be that room.
        from unified_ipu.adapter import registered

        self._points: Dict[str, Any] = dict(registered(GROUP))

    def find_spec(
        self,
        fullname: str,
        path: Optional[Sequence[str]] = None,  # noqa: ARG002  # the signature is Python's
        target: Optional[ModuleType] = None,  # noqa: ARG002  # likewise
    ) -> Optional[ModuleSpec]:
        """Install the emulation that stands in for a module.

        Args:
            fullname: The module that is about to be imported.
            path: Not used.
            target: Not used.

        Returns:
            How to load what was installed; None for any other module.

        Raises:
            ConfigError: If the emulation did not install what it is registered for.
        """
        # Taken out first: while it is installed, the emulation imports what it needs itself.
        point = self._points.pop(fullname, None)
        if point is None:
            return None
        point.load()()
        if fullname not in sys.modules:
            raise ConfigError(
                f"{point.value} is registered as an emulation of {fullname} but installed none"
            )
        return ModuleSpec(fullname, _Installed(sys.modules[fullname]))


class _Installed(Loader):
    """Gives a module that is there already, unchanged."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._kept: Tuple[Any, Any] = (module.__spec__, module.__loader__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002  # Python's
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__, module.__loader__ = self._kept

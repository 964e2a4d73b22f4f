"""PopART itself, or the emulation of it: the code of the device does not ask which."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from unified_ipu.errors import AdapterLoadError
from unified_ipu.world import current_environment, join_popdist
from unified_ipu_onnx.errors import NAME

_OF_THE_SDK = "TrainingSession"
_FILES = ("builder.py", "session.py", "tensorinfo.py")


def has_popart() -> bool:
    """Whether PopART of the Poplar SDK can be imported here; imports nothing."""
    if "popart" in sys.modules:
        module = sys.modules["popart"]
        return hasattr(module, _OF_THE_SDK) and not getattr(module, "__emulated__", False)
    try:
        spec = importlib.util.find_spec("popart")
    except (ImportError, ValueError):
        return False
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    # An unrelated project of a public registry has the same name, and not these files.
    return any(all((Path(f) / name).is_file() for name in _FILES) for f in folders)


def import_before_onnx() -> None:
    """Import PopART now where it is, since it refuses to be imported after onnx."""
    if "onnx" not in sys.modules and has_popart():
        importlib.import_module("popart")


def popdist_of(target: str) -> Any:
    """``popdist``, initialised, if PopRun started this process to use IPUs; else None."""
    return None if target == "ipu-emulated" else join_popdist(current_environment())


def sdk_of(target: str) -> Any:
    """PopART for a target.

    Under PopRun its backend is started too, once and before any session. The options that
    ``popdist.popart.configureSessionOptions`` fills in are those of the lowering.

    Args:
        target: ``"ipu"`` or ``"ipu-emulated"``.

    Raises:
        AdapterLoadError: If it cannot be imported.
        ConfigError: If PopRun started this process and popdist cannot be imported.
    """
    if target == "ipu-emulated":
        from unified_ipu_onnx.emulated import popart

        return popart
    try:
        popart = importlib.import_module("popart")
    except ImportError as error:
        raise AdapterLoadError(
            NAME,
            f"popart of the Poplar SDK cannot be imported: {error}. It must be imported before "
            "onnx: pass the path of a file, or import popart at the top of the script",
        ) from error
    join_popdist(current_environment())
    return popart

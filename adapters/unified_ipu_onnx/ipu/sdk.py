"""PopART itself, or the emulation of it: the code of the device does not ask which."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from unified_ipu.errors import AdapterLoadError
from unified_ipu.world import current_environment, join_popdist
from unified_ipu_onnx.errors import NAME

_OF_THE_SDK = "TrainingSession"


def has_popart() -> bool:
    """Whether PopART of the Poplar SDK can be imported here; imports nothing."""
    if "popart" in sys.modules:
        module = sys.modules["popart"]
        return hasattr(module, _OF_THE_SDK) and not getattr(module, "__emulated__", False)
    try:
        # An unrelated project of a public registry has the same name, and not this module.
        return importlib.util.find_spec("popart") is not None and _has_core()
    except (ImportError, ValueError):
        return False


def _has_core() -> bool:
    return importlib.util.find_spec("popart_core") is not None


def import_before_onnx() -> None:
    """Import PopART now where it is, since it refuses to be imported after onnx."""
    if "onnx" not in sys.modules and has_popart():
        importlib.import_module("popart")


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

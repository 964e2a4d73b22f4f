"""Where PopTorch comes from, and how a program's options are made."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Dict, Sequence, Tuple

import torch

from unified_ipu.adapter import NativeCall, apply_native_calls
from unified_ipu.errors import AdapterLoadError
from unified_ipu.world import current_environment, join_popdist
from unified_ipu_torch.errors import NAME

# What popdist.poptorch.Options sets by itself, and refuses to be told.
_POPDIST_SETS = ("options.replicationFactor", "options.Distributed.")


@dataclass(frozen=True)
class Sdk:
    """PopTorch, real or emulated; nothing else asks which.

    Args:
        poptorch: The module.
        popdist: Makes the options of a process that PopRun started, else None.
    """

    poptorch: Any
    popdist: Any = None

    def options(self, calls: Sequence[NativeCall], *, process: int, ipus_per_replica: int) -> Any:
        """Make a program's options as the lowering says.

        Args:
            calls: Of the program.
            process: Index of this process.
            ipus_per_replica: Only popdist has to be told.
        """
        if self.popdist is None:
            options = self.poptorch.Options()
        else:
            module = importlib.import_module(f"{self.popdist.__name__}.poptorch")
            options = module.Options(ipus_per_replica=ipus_per_replica)
            calls = [call for call in calls if not call.name.startswith(_POPDIST_SETS)]
        apply_native_calls(calls, {"options": options}, self.names(process_id=process))
        return options

    def names(self, **more: Any) -> Dict[str, Any]:
        """What native code may name."""
        return {"poptorch": self.poptorch, "torch": torch, **more}


def load_sdk(target: str) -> Sdk:
    """Import PopTorch for a target.

    Args:
        target: ``"ipu"`` or ``"ipu-emulated"``.

    Raises:
        AdapterLoadError: If the SDK's wheel is not installed.
    """
    if target == "ipu-emulated":
        return Sdk(importlib.import_module("unified_ipu_torch.emulated.poptorch"))
    try:
        poptorch = importlib.import_module("poptorch")
    except ImportError as error:
        raise AdapterLoadError(
            NAME, f"poptorch cannot be imported ({error}); install the Poplar SDK's wheel of it"
        ) from error
    return Sdk(poptorch, join_popdist(current_environment()))


@lru_cache(maxsize=1)
def usable_targets() -> Tuple[str, ...]:
    """``"ipu"`` where PopTorch sees one, then ``"ipu-emulated"``."""
    if importlib.util.find_spec("poptorch") is None:
        return ("ipu-emulated",)
    try:
        poptorch = importlib.import_module("poptorch")
    except (ImportError, OSError):  # a wheel without the SDK's libraries
        return ("ipu-emulated",)
    is_real = not getattr(poptorch, "__emulated__", False)
    if is_real and poptorch.ipuHardwareIsAvailable():
        return ("ipu", "ipu-emulated")
    return ("ipu-emulated",)

"""Makes ``import poptorch`` mean the emulation, for a process that asks for it.

Never done by an import: a program that has the real SDK must not get the emulation by accident.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Dict, Optional

from unified_ipu.errors import ConfigError

BANNER = (
    "poptorch is unified_ipu's emulation: the SDK's documented semantics on the host's CPU; speed, "
    "memory and rounding are not those of an IPU"
)
_SEPARATE = {
    "poptorch_geometric": (
        "poptorch_geometric is a package of its own, for graph networks on IPUs, and is not "
        "emulated; run such models on the host with torch_geometric"
    ),
}


class _Missing:
    """Tells why a companion of the SDK cannot be imported."""

    @staticmethod
    def find_spec(name: str, *_: object) -> Optional[ModuleSpec]:
        """Refuse a name that is known not to be emulated.

        Raises:
            ModuleNotFoundError: With the reason.
        """
        if name in _SEPARATE:
            raise ModuleNotFoundError(_SEPARATE[name], name=name)
        return None


def install(popart: Optional[ModuleType] = None) -> ModuleType:
    """Put the emulation into ``sys.modules`` as ``poptorch``, ``popdist`` and ``popart``.

    Says so once on the standard error.

    Args:
        popart: A fuller emulation of it than the enumerations here.

    Returns:
        The emulated ``poptorch``.

    Raises:
        ConfigError: If the real SDK can be imported.
    """
    found = install_poptorch()
    if "popart" not in sys.modules:
        from unified_ipu_torch.emulated import popart as enumerations

        sys.modules["popart"] = popart or enumerations
    return found


def install_poptorch() -> ModuleType:
    """Put the emulation into ``sys.modules`` as ``poptorch`` and ``popdist`` only.

    Returns:
        The emulated ``poptorch``.

    Raises:
        ConfigError: If the real SDK can be imported.
    """
    if not is_installed():
        refuse_real_sdk()
        sys.modules.update(_modules())
        sys.meta_path.insert(0, _Missing)
        print(f"unified-ipu: {BANNER}", file=sys.stderr, flush=True)  # noqa: T201  # the banner
    return sys.modules["poptorch"]


def uninstall() -> None:
    """Take out what ``install`` put in."""
    top = ("poptorch", "popdist", "popart")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in top and module.__name__.startswith(__package__ or ""):
            del sys.modules[name]
    if _Missing in sys.meta_path:
        sys.meta_path.remove(_Missing)


def is_installed() -> bool:
    """Whether ``import poptorch`` gives the emulation."""
    return bool(getattr(sys.modules.get("poptorch"), "__emulated__", False))


def refuse_real_sdk() -> None:
    """Refuse to stand in for an SDK that is there.

    Raises:
        ConfigError: If ``poptorch`` can be imported, or was.
    """
    # Looks at files only: whoever offers the emulation under this name is asked by the import.
    if "poptorch" in sys.modules or PathFinder.find_spec("poptorch") is not None:
        raise ConfigError(
            "a real poptorch can be imported here; run the script without --emulate, or in an "
            "environment without the Poplar SDK"
        )


def _modules() -> Dict[str, ModuleType]:
    from unified_ipu_torch.emulated import popdist, poptorch
    from unified_ipu_torch.emulated.popdist import poptorch as popdist_poptorch

    found: Dict[str, ModuleType] = {
        "poptorch": poptorch,
        "popdist": popdist,
        "popdist.poptorch": popdist_poptorch,
    }
    prefix = f"{poptorch.__name__}."
    for name, module in list(sys.modules.items()):
        if name.startswith(prefix):
            found[f"poptorch.{name[len(prefix) :]}"] = module
    return found

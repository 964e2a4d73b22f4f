"""The Poplar SDK's PyTorch modules on the host: same names and semantics, no IPU.

Nothing here takes part in an import of the SDK unless ``install`` is called.
"""

from __future__ import annotations

from unified_ipu_torch.emulated.installing import (
    install as install,
    install_poptorch as install_poptorch,
    is_installed as is_installed,
    uninstall as uninstall,
)

__all__ = ["install", "install_poptorch", "is_installed", "uninstall"]

"""Whether there is an IPU: there is none, unless a switch says that a script should believe so.

Source: PopTorch 3.4, ``python/__init__.py``.
"""

from __future__ import annotations

from unified_ipu.world import current_environment
from unified_ipu_torch.emulated.poptorch.errors import require

SWITCH = "UNIFIED_IPU_EMULATED_HARDWARE"
VERSION = 2
_SIMULATORS = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Whether there is hardware; True only where the switch is "1".

    Args:
        num_ipus: How many are wanted.
    """
    environment = current_environment()
    # A script that asks for the SDK's simulator is told of no hardware, as by the SDK.
    is_simulated = any(environment.get(name, "0") not in {"", "0"} for name in _SIMULATORS)
    return num_ipus > 0 and environment.get(SWITCH) == "1" and not is_simulated


def ipuHardwareVersion() -> int:
    """Version of the hardware.

    Returns:
        2, where the switch says that there is any.

    Raises:
        AssertionError: If there is none.
    """
    require(ipuHardwareIsAvailable(), "No IPU hardware available on this system")
    return VERSION

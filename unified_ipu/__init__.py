"""One distributed-training interface for PyTorch, TensorFlow and ONNX.

Start with ``Session``, ``Plan`` and ``data``; ``unified-ipu run`` starts the processes. Names are
loaded when they are first used: the launcher and the data process need few of them.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

# Not late: importing the room binds its own name here, and the function must win.
from unified_ipu.launch import launch as launch

if TYPE_CHECKING:
    from unified_ipu import data as data
    from unified_ipu.adapter import (
        Loss as Loss,
        Record as Record,
        available_adapters as available_adapters,
        load_adapter as load_adapter,
        losses as losses,
        metrics as metrics,
        optim as optim,
    )
    from unified_ipu.errors import (
        AdapterError as AdapterError,
        AdapterLoadError as AdapterLoadError,
        AdapterNotFoundError as AdapterNotFoundError,
        CapabilityError as CapabilityError,
        CheckpointError as CheckpointError,
        CollectiveError as CollectiveError,
        CollectiveTimeoutError as CollectiveTimeoutError,
        ConfigError as ConfigError,
        ContractError as ContractError,
        DataError as DataError,
        DeviceError as DeviceError,
        LaunchError as LaunchError,
        NumericsError as NumericsError,
        PeerLostError as PeerLostError,
        PlanError as PlanError,
        UnifiedIpuError as UnifiedIpuError,
    )
    from unified_ipu.plan import Plan as Plan
    from unified_ipu.report import (
        BestCheckpoint as BestCheckpoint,
        Callback as Callback,
        EarlyStop as EarlyStop,
        EpochSummary as EpochSummary,
        FitContext as FitContext,
        JsonLines as JsonLines,
        Progress as Progress,
        Summary as Summary,
        TensorBoard as TensorBoard,
        doctor as doctor,
    )
    from unified_ipu.session import Program as Program, Session as Session
    from unified_ipu.world import World as World

__version__ = "0.0.1"

__all__ = [
    "AdapterError",
    "AdapterLoadError",
    "AdapterNotFoundError",
    "BestCheckpoint",
    "Callback",
    "CapabilityError",
    "CheckpointError",
    "CollectiveError",
    "CollectiveTimeoutError",
    "ConfigError",
    "ContractError",
    "DataError",
    "DeviceError",
    "EarlyStop",
    "EpochSummary",
    "FitContext",
    "JsonLines",
    "LaunchError",
    "Loss",
    "NumericsError",
    "PeerLostError",
    "Plan",
    "PlanError",
    "Program",
    "Progress",
    "Record",
    "Session",
    "Summary",
    "TensorBoard",
    "UnifiedIpuError",
    "World",
    "available_adapters",
    "data",
    "doctor",
    "launch",
    "load_adapter",
    "losses",
    "metrics",
    "optim",
]

_HOMES = {
    "data": ("data",),
    "plan": ("Plan",),
    "world": ("World",),
    "session": ("Program", "Session"),
    "adapter": (
        "Loss",
        "Record",
        "available_adapters",
        "load_adapter",
        "losses",
        "metrics",
        "optim",
    ),
    "report": (
        "BestCheckpoint",
        "Callback",
        "EarlyStop",
        "EpochSummary",
        "FitContext",
        "JsonLines",
        "Progress",
        "Summary",
        "TensorBoard",
        "doctor",
    ),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
}


def __getattr__(name: str) -> Any:
    for room, names in _HOMES.items():
        if name in names:
            module = _import_module(f"unified_ipu.{room}")
            return globals().setdefault(name, module if name == room else getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

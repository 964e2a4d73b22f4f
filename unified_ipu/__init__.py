"""One distributed-training interface for PyTorch, TensorFlow and ONNX.

    import unified_ipu as ui

    with ui.Session() as session:
        program = session.compile(model, loss=..., optimizer=...)
        program.fit(session.loader(ui.data.arrays(x, y)), epochs=8)
"""

from __future__ import annotations

from unified_ipu import data as data
from unified_ipu.adapter import metrics as metrics, optim as optim
from unified_ipu.adapter.contract import Loss as Loss
from unified_ipu.adapter.record import Record as Record
from unified_ipu.adapter.registry import (
    available_adapters as available_adapters,
    load_adapter as load_adapter,
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
from unified_ipu.launch.function import launch as launch
from unified_ipu.plan import Plan as Plan
from unified_ipu.report import (
    Callback as Callback,
    EpochSummary as EpochSummary,
    FitContext as FitContext,
    JsonLines as JsonLines,
    Progress as Progress,
    Summary as Summary,
)
from unified_ipu.session import Program as Program, Session as Session
from unified_ipu.world import World as World

__version__ = "0.0.1"

__all__ = [
    "AdapterError",
    "AdapterLoadError",
    "AdapterNotFoundError",
    "Callback",
    "CapabilityError",
    "CheckpointError",
    "CollectiveError",
    "CollectiveTimeoutError",
    "ConfigError",
    "ContractError",
    "DataError",
    "DeviceError",
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
    "UnifiedIpuError",
    "World",
    "available_adapters",
    "data",
    "launch",
    "load_adapter",
    "metrics",
    "optim",
]

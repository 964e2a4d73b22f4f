"""PyTorch adapter. Importing it imports no framework; what needs torch is loaded when used."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unified_ipu.adapter import Adapter
    from unified_ipu_torch import collectives as collectives
    from unified_ipu_torch.sync_batch_norm import (
        SyncBatchNorm as SyncBatchNorm,
        convert_sync_batch_norm as convert_sync_batch_norm,
    )

__all__ = ["SyncBatchNorm", "collectives", "convert_sync_batch_norm", "create"]


def create() -> Adapter:
    """Return the adapter; torch itself is imported when a model is built."""
    from unified_ipu_torch.adapter import TorchAdapter

    return TorchAdapter()


def __getattr__(name: str) -> Any:
    if name == "collectives":
        return _import_module("unified_ipu_torch.collectives")
    if name in {"SyncBatchNorm", "convert_sync_batch_norm"}:
        return getattr(_import_module("unified_ipu_torch.sync_batch_norm"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

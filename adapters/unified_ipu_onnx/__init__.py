"""ONNX: a graph trained as a torch module; importing this imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_ipu.errors import AdapterLoadError

if TYPE_CHECKING:
    from unified_ipu.adapter import Adapter

__all__ = ["create"]


def create() -> Adapter:
    """Return the ONNX adapter, once there is one.

    Raises:
        AdapterLoadError: Always.
    """
    raise AdapterLoadError("onnx", "training ONNX models is not built yet")

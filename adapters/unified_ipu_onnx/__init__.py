"""ONNX: a graph trained as a torch module; importing this imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_ipu.adapter import Adapter

__all__ = ["create"]


def create() -> Adapter:
    """Return the adapter; onnx and torch are imported when a model is built."""
    from unified_ipu_onnx.adapter import OnnxAdapter

    return OnnxAdapter()

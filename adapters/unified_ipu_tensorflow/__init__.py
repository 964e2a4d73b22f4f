"""TensorFlow adapter and tf.data sources. Importing it imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_ipu.adapter import Adapter

__all__ = ["create"]


def create() -> Adapter:
    """Return the adapter; TensorFlow itself is imported when a model is built."""
    from unified_ipu_tensorflow.adapter import TensorflowAdapter

    return TensorflowAdapter()

"""One distributed-training interface for PyTorch, TensorFlow and ONNX."""

from __future__ import annotations

__all__: list = []

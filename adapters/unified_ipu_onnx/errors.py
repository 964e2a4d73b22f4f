"""The name under which errors of this adapter are raised."""

from __future__ import annotations

NAME = "onnx"

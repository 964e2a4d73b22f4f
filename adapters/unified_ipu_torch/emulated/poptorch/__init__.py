"""PopTorch's names and documented semantics on the host."""

from __future__ import annotations

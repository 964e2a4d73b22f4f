"""Keras models on IPUs: the device that drives the SDK's own API by the lowered calls.

The SDK's modules are values here, real or emulated; nothing asks which of the two they are.
"""

from __future__ import annotations

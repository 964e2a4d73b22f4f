"""Prefixes of tensor names that PopART keeps for itself.

Source: PopART of SDK 3.4, ``willow/include/popart/tensornames.hpp``.
"""

from __future__ import annotations


def reservedGradientPrefix() -> str:
    """Of the gradient of a tensor."""
    return "Gradient___"


def reservedAccumPrefix() -> str:
    """Of gradients that are being summed."""
    return "Accum___"


def reservedAcclPrefix() -> str:
    """Of a velocity that gradients are summed into."""
    return "Accl___"


def reservedAccl1Prefix() -> str:
    """Of first moments and separate velocities."""
    return "Accl1___"


def reservedAccl2Prefix() -> str:
    """Of second moments."""
    return "Accl2___"


def reservedAccl3Prefix() -> str:
    """Of third accumulators, which some adaptive optimizers keep."""
    return "Accl3___"


def reservedStepPrefix() -> str:
    """Of Adam's count of updates."""
    return "Step___"

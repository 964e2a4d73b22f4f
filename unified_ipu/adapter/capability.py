"""What an adapter may or may not be able to do, and how far it can."""

from __future__ import annotations

from enum import Enum


class Capability(str, Enum):
    """An optional ability; required behaviour is not a capability."""

    NATIVE_OPTIMIZERS = "native_optimizers"  # the framework's own optimizers
    PARAMETER_GROUPS = "parameter_groups"  # a rate for each group of a native optimizer
    NATIVE_SCHEDULES = "native_schedules"  # the framework's own learning-rate schedulers
    RANDOM_LAYERS = "random_layers"  # dropout and the like, keyed by update and micro-batch
    BUFFERS = "buffers"  # running statistics and other state that is not trained
    SHARED_PARAMETERS = "shared_parameters"  # tied weights counted once
    MIXED_PRECISION = "mixed_precision"  # precision.compute other than float32
    ONNX_EXPORT = "onnx_export"  # Program.export_onnx


class Support(str, Enum):
    """How far an adapter supports a capability."""

    FULL = "full"  # works, and the conformance suite proves it
    FALLBACK = "fallback"  # right results by another way
    NOT_WRITTEN = "not_written"  # the framework can, this adapter does not yet
    IMPOSSIBLE = "impossible"  # the framework cannot

    @property
    def is_usable(self) -> bool:
        """Whether a user may rely on it."""
        return self in {Support.FULL, Support.FALLBACK}

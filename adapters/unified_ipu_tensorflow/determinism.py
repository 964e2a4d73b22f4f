"""Deterministic kernels while a program that wants them is open; TensorFlow keeps this globally."""

from __future__ import annotations

from threading import Lock
from typing import Any

import tensorflow as tf

from unified_ipu.errors import CapabilityError
from unified_ipu_tensorflow.errors import NAME


class Determinism:
    """Counts who wants deterministic kernels; the last to let go puts TensorFlow back."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._was_on = False

    def acquire(self) -> None:
        """Switch them on; operations that have no deterministic kernel raise from now on.

        Raises:
            CapabilityError: If this version of TensorFlow cannot.
        """
        if not hasattr(tf.config.experimental, "enable_op_determinism"):
            raise CapabilityError(
                NAME,
                f"TensorFlow {tf.__version__} has no deterministic kernels to switch on (2.8 has); "
                "set deterministic = false, or install a later version",
            )
        with self._lock:
            if self._holders == 0:
                self._was_on = _settings().is_op_determinism_enabled()
                tf.config.experimental.enable_op_determinism()
            self._holders += 1

    def release(self) -> None:
        """Let go once."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and not self._was_on:
                _settings().disable_op_determinism()


def _settings() -> Any:
    # Only switching on is public.
    from tensorflow.python.framework import config

    return config


determinism = Determinism()
"""The one of this process."""

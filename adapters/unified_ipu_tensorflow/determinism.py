"""Deterministic kernels while a program that wants them is open; TensorFlow keeps this globally."""

from __future__ import annotations

from threading import Lock
from typing import Any

import tensorflow as tf


class Determinism:
    """Counts who wants deterministic kernels; the last to let go puts TensorFlow back."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._was_on = False

    def acquire(self) -> None:
        """Switch them on; operations that have no deterministic kernel raise from now on."""
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

"""Deterministic kernels while a program that wants them is open; torch keeps this globally."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import Iterator, Optional, Tuple

import torch


class Determinism:
    """Counts who wants deterministic kernels; the last to let go puts torch back as it was."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._before: Optional[Tuple[bool, bool, bool]] = None

    def acquire(self) -> None:
        """Switch them on; operations that have no deterministic kernel raise from now on."""
        with self._lock:
            if self._holders == 0:
                self._before = (
                    torch.are_deterministic_algorithms_enabled(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                    torch.backends.cudnn.benchmark,
                )
                torch.use_deterministic_algorithms(True)
                torch.backends.cudnn.benchmark = False  # it may choose another kernel each time
            self._holders += 1

    def release(self) -> None:
        """Let go once."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and self._before is not None:
                enabled, warn_only, benchmark = self._before
                torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
                torch.backends.cudnn.benchmark = benchmark


determinism = Determinism()
"""The one of this process."""


@contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Have them inside."""
    determinism.acquire()
    try:
        yield
    finally:
        determinism.release()

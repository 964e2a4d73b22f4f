"""What ``compile`` says about a model: layers and settings whose meaning is easily missed."""

from __future__ import annotations

import logging
from typing import Sequence

logger = logging.getLogger("unified_ipu.session")


def log_notes(notes: Sequence[str], *, is_first: bool) -> None:
    """Log each note once, on rank 0."""
    if is_first:
        for note in notes:
            logger.warning("%s", note)

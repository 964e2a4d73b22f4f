"""What ``compile`` says about a model: layers and settings whose meaning is easily missed."""

from __future__ import annotations

import logging
from typing import Sequence, Tuple

from unified_ipu.adapter import Device, Lowering

logger = logging.getLogger("unified_ipu.session")


def log_notes(notes: Sequence[str], *, is_first: bool) -> None:
    """Log each note once, on rank 0."""
    if is_first:
        for note in notes:
            logger.warning("%s", note)


def notes_of(lowering: Lowering, built: object) -> Tuple[str, ...]:
    """What a user should know: of a device what it says itself, since it does what is lowered.

    Args:
        lowering: Of the plan; on devices its notes are for readers of native scripts.
        built: What the adapter has built.
    """
    own = tuple(getattr(built, "notes", ()))
    return own if isinstance(built, Device) else (*lowering.notes, *own)

"""Checkpoints on disk: whole or refused, readable without us, and never executed."""

from __future__ import annotations

from unified_ipu.checkpoint.folder import (
    KEEP as KEEP,
    has_checkpoints as has_checkpoints,
    open_checkpoint as open_checkpoint,
    publish as publish,
)
from unified_ipu.checkpoint.manifest import (
    LoaderEntry as LoaderEntry,
    Manifest as Manifest,
    ProgramEntry as ProgramEntry,
    TensorEntry as TensorEntry,
)
from unified_ipu.checkpoint.saved import Saved as Saved, write_checkpoint as write_checkpoint
from unified_ipu.checkpoint.tensor_file import (
    StoredTensor as StoredTensor,
    check_storable as check_storable,
)

__all__ = [
    "KEEP",
    "LoaderEntry",
    "Manifest",
    "ProgramEntry",
    "Saved",
    "StoredTensor",
    "TensorEntry",
    "check_storable",
    "has_checkpoints",
    "open_checkpoint",
    "publish",
    "write_checkpoint",
]

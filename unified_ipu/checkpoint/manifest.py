"""The manifest: what a checkpoint holds, of which form it is, and the hashes of its files."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Optional

import msgspec

from unified_ipu.errors import CheckpointError

FORMAT = "unified_ipu checkpoint"
VERSION = 1
"""Of the form; a reader refuses greater ones."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every table of a manifest."""


class TensorEntry(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor of a program, as ``TensorSpec`` has it."""

    name: str
    shape: List[int]
    dtype: str
    role: str


class FileEntry(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file beside the manifest."""

    num_bytes: int
    sha256: str


class ProgramEntry(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One program; its tensors lie in the files ``weights`` and ``slots``.

    Where ranks had buffers of their own, the file ``ranks`` has those of each, by
    ``<rank>/<buffer>``, and ``trained`` says which of them ever had samples; ``weights`` has what
    they are together.
    """

    adapter: str
    update: int
    updates_happened: int
    tensors: List[TensorEntry]
    scalars: Dict[str, Any]
    weights: str
    slots: str
    ranks: Optional[str] = None
    trained: List[bool] = []


class LoaderEntry(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One loader: its position and what was delivered in the epoch until there."""

    state: Dict[str, Any]


class Manifest(_Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a checkpoint but the tensors.

    Args:
        step: Updates behind it; names the folder.
        written_by: Version of unified_ipu, for people.
        plan: The plan's tables, for people.
        programs: By the name they were saved under.
        loaders: By the name they were saved under.
        files: By file name.
        notes: What ``fit`` needs to go on: None if it was not saved by ``fit``.
        algorithm: How gradients were summed between hosts, "" where there was no choice: sums are
            the same bits only by the same one.
    """

    step: int
    written_by: str
    plan: Dict[str, Any]
    programs: Dict[str, ProgramEntry]
    loaders: Dict[str, LoaderEntry]
    files: Dict[str, FileEntry] = {}
    notes: Optional[Dict[str, Any]] = None
    algorithm: str = ""


def manifest_to_text(manifest: Manifest) -> str:
    """JSON of a manifest, with the form's name, its version and a hash of the rest."""
    content = msgspec.to_builtins(manifest)
    head = {"format": FORMAT, "version": VERSION, "sha256": _hash(content)}
    return json.dumps({**head, **content}, indent=1) + "\n"


def manifest_from_text(text: str) -> Manifest:
    """Read what ``manifest_to_text`` wrote.

    Raises:
        CheckpointError: If it is damaged, foreign, or written by a later version.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"manifest.json is damaged: {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise CheckpointError(f"manifest.json is not ours: it has no format {FORMAT!r}")
    version, digest = content.pop("version", None), content.pop("sha256", None)
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            f"it has version {version} of the format, this unified_ipu reads up to {VERSION}; "
            f"it was written by unified_ipu {content.get('written_by')}: use that or a later one"
        )
    if version != VERSION or digest != _hash(content):
        raise CheckpointError("manifest.json is damaged: its content is not that of its sha256")
    try:
        return msgspec.convert(content, Manifest)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"manifest.json is damaged: {error}") from error


def _hash(content: Dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

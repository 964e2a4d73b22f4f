"""One checkpoint: a manifest and its tensor files, written to and read from one folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Mapping, Sequence

import msgspec

from unified_ipu.checkpoint.manifest import (
    FileEntry,
    Manifest,
    manifest_from_text,
    manifest_to_text,
)
from unified_ipu.checkpoint.tensor_file import (
    FileFacts,
    StoredTensor,
    read_tensors,
    write_tensors,
)
from unified_ipu.errors import CheckpointError

MANIFEST = "manifest.json"


class Saved:
    """A checkpoint on disk whose manifest was read and whose files are there in full size.

    Args:
        folder: Of this one checkpoint.

    Raises:
        CheckpointError: If something is missing, damaged, foreign or too new.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            text = (folder / MANIFEST).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{MANIFEST} is damaged: it is no text") from error
        except OSError as error:
            raise CheckpointError(f"{MANIFEST} cannot be read: {error.strerror}") from error
        self.manifest: Manifest = manifest_from_text(text)
        for name, entry in self.manifest.files.items():
            path = folder / name
            if not path.is_file():
                raise CheckpointError(f"{name} is missing")
            if path.stat().st_size != entry.num_bytes:
                raise CheckpointError(
                    f"{name} has {path.stat().st_size} bytes, its manifest says {entry.num_bytes}"
                )

    def tensors(self, name: str) -> Dict[str, StoredTensor]:
        """Read and check one of the files.

        Raises:
            CheckpointError: If its content is not what was written.
        """
        entry = self.manifest.files.get(name)
        if entry is None or Path(name).name != name:
            raise CheckpointError(f"its manifest has no file {name!r}")
        return read_tensors(self.folder / name, FileFacts(entry.num_bytes, entry.sha256))


def write_checkpoint(
    folder: Path, manifest: Manifest, files: Mapping[str, Sequence[StoredTensor]]
) -> None:
    """Write everything into an empty folder and fsync it.

    Raises:
        CheckpointError: If a tensor cannot be stored.
        OSError: If the disk does not take it.
    """
    written: Dict[str, FileEntry] = {}
    for name, tensors in files.items():
        facts = write_tensors(folder / name, tensors)
        written[name] = FileEntry(num_bytes=facts.num_bytes, sha256=facts.sha256)
    write_text(
        folder / MANIFEST, manifest_to_text(msgspec.structs.replace(manifest, files=written))
    )
    sync_folder(folder)


def write_text(path: Path, text: str) -> None:
    """Write and fsync a small file."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make what was created in or renamed into a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

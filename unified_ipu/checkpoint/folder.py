"""The folder of a run: a checkpoint appears in it whole, or not at all.

A checkpoint is written under a name that nobody looks for, renamed into place, and counts only once
``latest`` names it. ``latest`` is prepared as ``latest.new`` before the first rename, so that a run
that was killed between the two can be told from one whose ``latest`` was lost.
"""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path
from typing import Callable, List, Optional

from unified_ipu.checkpoint.saved import MANIFEST, Saved, sync_folder, write_text
from unified_ipu.errors import CheckpointError

KEEP = 3
"""How many checkpoints a run keeps."""

LATEST = "latest"
_PREPARED = "latest.new"
_WRITING = ".writing-"
_STEP = re.compile(r"step-\d{8,}(-\d+)?")


def publish(folder: Path, step: int, write: Callable[[Path], None], *, keep: int = KEEP) -> Path:
    """Write a checkpoint and make it the latest; on any failure the one before stays the latest.

    Args:
        folder: Of the run; made if needed.
        step: Names the checkpoint.
        write: Fills the empty folder it is given, and fsyncs.
        keep: How many are kept, this one included; the longest unwritten ones go.

    Returns:
        The folder of the checkpoint.

    Raises:
        OSError: If the disk does not take it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_WRITING}*"):
        shutil.rmtree(left, ignore_errors=True)  # of a run that was killed
    temporary = folder / f"{_WRITING}{secrets.token_hex(8)}"
    temporary.mkdir()
    try:
        write(temporary)
        final = _free_name(folder, step)
        write_text(folder / _PREPARED, final.name + "\n")
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    (folder / _PREPARED).rename(folder / LATEST)
    sync_folder(folder)
    for old in _by_age(folder)[keep:]:
        if old != final:
            shutil.rmtree(old, ignore_errors=True)
    return final


def has_checkpoints(folder: Path) -> bool:
    """Whether a run has left something to go on from, be it damaged."""
    return (folder / LATEST).exists() or bool(_steps(folder))


def open_checkpoint(path: Path) -> Saved:
    """Open the latest checkpoint of a run, or the one whose own folder is given.

    Raises:
        CheckpointError: If there is none, or it is damaged, foreign or too new. An older one is
            never taken in its place, but named.
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint at {path}: no such folder")
    if (path / MANIFEST).exists():
        run, chosen = path.parent, path
    else:
        run, chosen = path, _latest(path)
    try:
        return Saved(chosen)
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {chosen}: {error}{_others(run, chosen)}") from error


def _latest(folder: Path) -> Path:
    for name in (LATEST, _PREPARED):
        try:
            target = (folder / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if _STEP.fullmatch(target) is None:
            raise CheckpointError(
                f"{folder / name} does not name a checkpoint{_others(folder, None)}"
            )
        if (folder / target).is_dir():
            return folder / target
        if name == LATEST:
            raise CheckpointError(
                f"{folder / LATEST} names {target}, which is missing{_others(folder, None)}"
            )
    if _steps(folder):
        raise CheckpointError(f"{folder / LATEST} is missing{_others(folder, None)}")
    raise CheckpointError(
        f"there is no checkpoint at {folder}: it has neither {LATEST} nor {MANIFEST}"
    )


def _others(run: Path, chosen: Optional[Path]) -> str:
    """Name what else could be restored; nothing of it is taken by itself."""
    whole: List[str] = []
    for step in _by_age(run):
        if step == chosen:
            continue
        try:
            Saved(step)
        except CheckpointError:
            continue
        whole.append(str(step))
    if not whole:
        return f"; there is no other whole one in {run}"
    return f"; whole ones that you can name instead: {', '.join(whole)}"


def _steps(folder: Path) -> List[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if _STEP.fullmatch(path.name) and path.is_dir()]


def _by_age(folder: Path) -> List[Path]:
    """Folders of checkpoints with a manifest, the one written last first."""
    dated = [
        ((step / MANIFEST).stat().st_mtime_ns, step.name, step)
        for step in _steps(folder)
        if (step / MANIFEST).exists()
    ]
    return [step for _, _, step in sorted(dated, reverse=True)]


def _free_name(folder: Path, step: int) -> Path:
    # A step that is saved once more must not replace the one that `latest` names.
    final, number = folder / f"step-{step:08d}", 2
    while final.exists():
        final, number = folder / f"step-{step:08d}-{number}", number + 1
    return final

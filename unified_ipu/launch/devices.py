"""How many GPUs this host offers, without a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

_NVIDIA = Path("/proc/driver/nvidia/gpus")


def usable_gpus(environ: Mapping[str, str], *, folder: Path = _NVIDIA) -> int:
    """GPUs that a process started with this environment would see.

    Args:
        environ: ``CUDA_VISIBLE_DEVICES`` is looked at.
        folder: Where the driver lists its cards.

    Source: CUDA programming guide, "CUDA environment variables": devices behind the first invalid
    entry are invisible, and an empty value hides all.
    """
    cards = len(list(folder.glob("*"))) if folder.is_dir() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or cards == 0:
        return cards
    count = 0
    for entry in visible.split(","):
        name = entry.strip()
        is_index = name.isdigit() and int(name) < cards
        if not (is_index or name.startswith(("GPU-", "MIG-"))):
            break
        count += 1
    return count

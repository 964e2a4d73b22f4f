"""Shared memory cut into slots: made by the data process, mapped by one rank.

It has no name anywhere (``memfd_create``), so nothing can be left behind, and it is allocated when
it is made, so that a full machine is an error and not a signal.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Optional

import numpy as np

from unified_ipu.comms import available_bytes
from unified_ipu.errors import DataError

_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW: fcntl(2)
_ADD_SEALS = 1033


class Arena:
    """``num_slots`` slots of ``slot_bytes`` each.

    Args:
        descriptor: Of the memory; None allocates it.
        slot_bytes: A multiple of 64.
        num_slots: At least 1.
        generation: Counts the arenas of one rank.

    Raises:
        DataError: If there is not enough memory.
    """

    def __init__(
        self, slot_bytes: int, num_slots: int, generation: int, descriptor: Optional[int] = None
    ) -> None:
        self.slot_bytes = slot_bytes
        self.num_slots = num_slots
        self.generation = generation
        size = slot_bytes * num_slots
        self.descriptor = _allocate(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)

    def slot(self, index: int, num_bytes: int) -> np.ndarray:
        """A new array over the first bytes of a slot, uint8 ``[num_bytes]``.

        Every view of it keeps this very object alive, since no array stands behind it.
        """
        return np.frombuffer(
            self._memory, dtype=np.uint8, count=num_bytes, offset=index * self.slot_bytes
        )

    def close(self) -> None:
        """Close the descriptor; the memory stays as long as an array looks at it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _allocate(size: int) -> int:
    free = available_bytes()
    if free is not None and size > free:
        # Asking for it would not fail but get a process killed.
        raise DataError(
            f"{size / 2**20:.0f} MiB of shared memory for batches were asked for, "
            f"{free / 2**20:.0f} MiB are available; lower batch.micro_batch_size"
        )
    descriptor = os.memfd_create("unified-ipu-data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        raise DataError(
            f"{size / 2**20:.0f} MiB of shared memory for batches could not be had "
            f"({error.strerror}); lower batch.micro_batch_size"
        ) from error
    fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
    return descriptor

"""torch's exceptions into ours, where ours say more."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from unified_ipu.errors import DeviceError

NAME = "torch"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


@contextmanager
def translated() -> Iterator[None]:
    """Turn running out of memory into a ``DeviceError``; everything else passes as it is.

    Raises:
        DeviceError: If the host or the device ran out of memory.
        RuntimeError: Of torch, as it came.
        MemoryError: Never; it becomes a ``DeviceError``.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(t in str(error) for t in _OUT_OF_MEMORY):
            raise
        raise DeviceError(NAME, "out of memory; lower batch.micro_batch_size") from error

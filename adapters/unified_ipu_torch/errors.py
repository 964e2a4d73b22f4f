"""torch's exceptions into ours, where ours say more."""

from __future__ import annotations

from typing import Optional

from unified_ipu.errors import DeviceError

NAME = "torch"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


class Translation:
    """Turns running out of memory into a ``DeviceError``; everything else passes as it is.

    A class, since it is entered several times an update and a generator costs a microsecond more.
    """

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """Look at what passes.

        Raises:
            DeviceError: If the host or the device ran out of memory.
        """
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and any(t in str(error) for t in _OUT_OF_MEMORY)
        ):
            raise DeviceError(NAME, "out of memory; lower batch.micro_batch_size") from error


_translation = Translation()


def translated() -> Translation:
    """Return the context that translates torch's exceptions; it has no state."""
    return _translation

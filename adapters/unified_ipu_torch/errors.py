"""torch's exceptions into ours, where ours say more."""

from __future__ import annotations

from typing import Optional

from unified_ipu.errors import CapabilityError, DeviceError

NAME = "torch"
_NOT_DETERMINISTIC = "does not have a deterministic implementation"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")


class Translation:
    """Says more of memory that ran out and of kernels that are missing; the rest passes as it is.

    A class, since it is entered several times an update and a generator costs a microsecond more.
    """

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        """Look at what passes.

        Raises:
            DeviceError: If the host or the device ran out of memory.
            CapabilityError: If an operation has no deterministic kernel, and the plan wants one.
        """
        if isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and any(t in str(error) for t in _OUT_OF_MEMORY)
        ):
            raise DeviceError(NAME, "out of memory; lower batch.micro_batch_size") from error
        if isinstance(error, RuntimeError) and _NOT_DETERMINISTIC in str(error):
            operation = str(error).partition(_NOT_DETERMINISTIC)[0].strip()
            raise CapabilityError(
                NAME,
                f"{operation} has no deterministic kernel on this device; set deterministic = "
                "false, or use another operation in the model",
            ) from error


_translation = Translation()


def translated() -> Translation:
    """Return the context that translates torch's exceptions; it has no state."""
    return _translation

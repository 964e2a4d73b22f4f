"""torch's exceptions into ours, where ours say more."""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Optional

from unified_ipu.errors import CapabilityError, DeviceError

NAME = "torch"
_NOT_DETERMINISTIC = "does not have a deterministic implementation"
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
_NO_HALF_KERNEL = re.compile(r"\"?([\w.:]+)\"? not implemented for '(?:Half|BFloat16)'")
_MIXED_TYPES = re.compile(r"dtype|scalar type|data type")
_HALF_TYPES = re.compile(r"Half|BFloat16|float16")


class Translation:
    """Says more of memory that ran out and of missing kernels; the rest passes as it is."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self, kind: object, error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        """Look at what passes.

        Raises:
            DeviceError: If the host or the device ran out of memory.
            CapabilityError: If an operation has no deterministic kernel, and the plan wants one;
                or none in half precision.
        """
        if error is not None:
            say_more(error)


def say_more(error: BaseException) -> None:
    """Raise what says more than ``error``, if there is that; called where it was caught.

    Raises:
        DeviceError: If the host or the device ran out of memory.
        CapabilityError: If an operation has no deterministic kernel, and the plan wants one; or
            none in half precision.
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
    operation = _lacks_half(error, error.__traceback__)
    if operation:
        raise CapabilityError(
            NAME,
            f"{operation} cannot be run in half precision here ({error}); run it in float32, "
            "inside torch.autocast(..., enabled=False) and on inputs.float(), or set "
            "precision.compute to another type",
        ) from error


def _lacks_half(error: BaseException, trace: Optional[TracebackType]) -> str:
    """The operation that has no kernel for a half type, or was given several types."""
    if not isinstance(error, (RuntimeError, TypeError)):
        return ""
    missing = _NO_HALF_KERNEL.search(str(error))
    if missing:
        return missing.group(1)
    if _MIXED_TYPES.search(str(error)) and _HALF_TYPES.search(str(error)):
        frames = traceback.extract_tb(trace)
        return repr(frames[-1].line) if frames else "an operation"
    return ""


_translation = Translation()


def translated() -> Translation:
    """Return the context that translates torch's exceptions; it has no state."""
    return _translation

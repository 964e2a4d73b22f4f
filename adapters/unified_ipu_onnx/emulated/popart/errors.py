"""What PopART raises."""

from __future__ import annotations

from typing import Any


class popart_exception(RuntimeError):  # noqa: N801, N818  the SDK's name
    """What PopART refuses."""


class OutOfMemoryException(popart_exception):
    """A program that does not fit on a device; never raised here, where memory is the host's."""

    def getSummaryReport(self) -> str:
        """No device, no report."""
        return ""

    def getProfilePath(self) -> str:
        """No device, no profile."""
        return ""


class OptimizerReplacementError(popart_exception):
    """A new optimizer that differs from the old one in more than values that may change."""


class NotEmulatedError(popart_exception):
    """Something that PopART has and the emulation does not.

    Args:
        what: Name and reason.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"the emulated popart does not do this: {what}")


def check_type(owner: str, name: str, value: Any, kind: type) -> None:
    """Make sure that a value is what the SDK's binding takes.

    Raises:
        TypeError: As the binding does.
    """
    is_number = kind in {int, float} and isinstance(value, (int, float))
    fits = isinstance(value, kind) or (kind is float and is_number)
    if not fits or (is_number and isinstance(value, bool)):
        raise TypeError(
            f"{owner}.{name} takes {kind.__name__}, got {value!r} ({type(value).__name__})"
        )

"""The errors PopTorch raises, and how it checks what it is given.

Source: PopTorch 3.4, ``python/poptorch.cpp`` (the family), ``python/_impl.py`` (the type string).
"""

from __future__ import annotations

from typing import Any, NoReturn

PYTHON_ERROR = "poptorch_py_error"


class Error(Exception):
    """Anything that the device or its compiler refuses.

    Args:
        message: What is wrong.
        type: Which part of the SDK would have raised it.
        location: Where in its sources; empty here.
    """

    def __init__(self, message: str = "", type: str = PYTHON_ERROR, location: str = "") -> None:
        text = f"'{type}': {message}"
        super().__init__(f"{text}\nError raised in:\n{location}" if location else text)
        self.message = message
        self.type = type
        self.location = location

    def __reduce__(self) -> Any:
        """Travels to other processes with its parts."""
        return self.__class__, (self.message, self.type, self.location)


class RecoverableError(Error):
    """An error of the device after which a reset helps; never raised by the emulation itself."""

    recovery_action = "FULL_RESET"


class UnrecoverableError(Error):
    """An error of the device after which nothing helps; never raised by the emulation itself."""


def require(condition: object, message: str) -> None:
    """Refuse an argument the way PopTorch does, with an ``AssertionError``.

    Args:
        condition: What has to be true.
        message: What to say otherwise.

    Raises:
        AssertionError: If the condition is not true.
    """
    if not condition:
        raise AssertionError(message)


def absent(name: str, reason: str) -> NoReturn:
    """Refuse something that the emulation cannot do.

    Args:
        name: Of the SDK.
        reason: Why, and what to do instead.

    Raises:
        Error: Always.
    """
    raise Error(f"poptorch.{name} is not emulated: {reason}", "unified_ipu_emulation")


def check_type(name: str, value: Any, kind: type) -> None:
    """Refuse a value of another type than the option's default has.

    Args:
        name: Of the option.
        value: What was given.
        kind: Type of the default.

    Raises:
        AssertionError: If it is of another type.
    """
    require(
        isinstance(value, kind), f"Unexpected type {type(value)} for option {name}. Expected {kind}"
    )

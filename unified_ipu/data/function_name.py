"""Checks of what users name instead of handing over: ``"module:function"`` and its size."""

from __future__ import annotations

from typing import Any

from unified_ipu.errors import ConfigError


def check_function(kind: str, function: str) -> None:
    """Refuse what is not ``"module:function"``.

    Raises:
        ConfigError: With what was given.
    """
    module, _, name = function.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(
            f'{kind}: got the function {function!r}; expected "module:function", '
            "a module that the data process can import and a function in it"
        )


def check_size_argument(kind: str, size: Any) -> None:
    """Refuse a number of samples that cannot be one.

    Raises:
        ConfigError: With what was given.
    """
    if type(size) is not int or size < 1:
        raise ConfigError(
            f"{kind}: got size={size!r}; expected the number of samples, an integer >= 1"
        )

"""PopART's loggers, and what the emulation says once."""

from __future__ import annotations

import logging
from typing import Dict, Set

_LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}
_root = logging.getLogger("popart")
_said: Set[str] = set()


class Logger:
    """One of PopART's loggers; levels are those of the SDK.

    Args:
        name: ``"all"``, ``"session"``, ``"ir"`` and so on.
    """

    def __init__(self, name: str) -> None:
        self._logger = _root if name == "all" else _root.getChild(name)

    def setLevel(self, level: str) -> None:
        """Set the level, one of TRACE, DEBUG, INFO, WARN, ERR, CRITICAL, OFF.

        Raises:
            ValueError: For another one.
        """
        if level.upper() not in _LEVELS:
            raise ValueError(f"unknown level {level!r}; choose from {', '.join(_LEVELS)}")
        self._logger.setLevel(_LEVELS[level.upper()])

    def debug(self, text: str) -> None:
        """Log a line."""
        self._logger.debug("%s", text)

    def info(self, text: str) -> None:
        """Log a line."""
        self._logger.info("%s", text)

    def warn(self, text: str) -> None:
        """Log a line."""
        self._logger.warning("%s", text)

    def error(self, text: str) -> None:
        """Log a line."""
        self._logger.error("%s", text)


_loggers: Dict[str, Logger] = {}


def getLogger(name: str = "all") -> Logger:
    """Return the logger of that name."""
    return _loggers.setdefault(name, Logger(name))


def note_once(key: str, text: str) -> None:
    """Say at info level, once a process, that something has no effect without a device."""
    if key not in _said:
        _said.add(key)
        _root.info("%s", text)

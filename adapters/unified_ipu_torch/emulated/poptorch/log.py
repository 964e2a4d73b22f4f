"""PopTorch's logger, its levels, and notes about what has no effect here.

Source: PopTorch 3.4, ``python/_logging.py``. Unlike it, nothing is changed outside of this logger:
no exception hook, no fault handler.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, Set, Tuple, Union

from unified_ipu.world import current_environment

logger = logging.getLogger("poptorch::python")

LEVELS: Dict[str, Tuple[int, int]] = {
    "TRACE": (0, logging.DEBUG),
    "TRACE_ALL": (0, logging.DEBUG),
    "DEBUG": (1, logging.DEBUG),
    "DEBUG_IR": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, logging.CRITICAL),
}
_SHOWN = ("DEBUG", "ERR", "INFO", "OFF", "TRACE", "WARN")
_said: Set[str] = set()


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # generic in stubs only
    """Writes to the standard error of the moment, which tests and notebooks replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        import sys

        return sys.stderr


def setLogLevel(level: Union[str, int]) -> None:
    """Set from which level on messages are shown.

    Args:
        level: A name, such as "INFO", or its number.

    Raises:
        ValueError: If there is no such level.
    """
    if isinstance(level, int):
        names = [name for name, (number, _) in LEVELS.items() if number == level]
        if not names:
            raise ValueError("Invalid log level integer")
        level = names[0]
    if level not in LEVELS:
        shown = ", ".join(_SHOWN[:-1])
        raise ValueError(f"Unknown log level: {level}. Valid values are {shown} and {_SHOWN[-1]}")
    logger.setLevel(LEVELS[level][1])


def note_once(key: str, text: str) -> None:
    """Say, once in this process, that something has no effect in the emulation.

    Args:
        key: What it is about; a second note with this key is not said.
        text: The sentence.
    """
    if key not in _said:
        _said.add(key)
        logger.info("%s has no effect in the emulation: %s", key, text)


def _setup() -> None:
    handler = _Handler()
    form = "[%(asctime)s] [%(name)s] [%(levelname)s] %(message)s"
    handler.setFormatter(logging.Formatter(form, "%H:%M:%S"))
    logger.addHandler(handler)
    setLogLevel(current_environment().get("POPTORCH_LOG_LEVEL", "WARN"))


if not logger.handlers:
    _setup()

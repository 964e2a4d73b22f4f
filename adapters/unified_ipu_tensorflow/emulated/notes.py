"""What an emulation says of settings without an effect, and of names that it does not have."""

from __future__ import annotations

import logging
from typing import Any, Callable, Set

_log = logging.getLogger("unified_ipu.emulated.tensorflow")
_said: Set[str] = set()


def note_once(key: str, text: str) -> None:
    """Say, once in this process, that something has no effect here.

    Args:
        key: What it is about; a second note with this key is not said.
        text: Why.
    """
    if key not in _said:
        _said.add(key)
        _log.info("%s has no effect in the emulation: %s", key, text)


def warn_once(text: str) -> None:
    """Say a sentence, once in this process, that the SDK says each time."""
    if text not in _said:
        _said.add(text)
        _log.warning("%s", text)


def refuse_others(module: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module, which says of what it lacks that it is not emulated.

    Args:
        module: Its name in the SDK.
    """

    def missing(name: str) -> Any:
        raise AttributeError(
            f"the emulated {module} has no {name!r}: it offers what unified_ipu's own lowering "
            "uses; run this script where the Poplar SDK is"
        )

    return missing

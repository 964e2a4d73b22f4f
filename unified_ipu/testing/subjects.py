"""Finding the subject of an installed adapter: by entry point, or as its author says."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Optional, Tuple, cast

from unified_ipu.adapter import available_adapters, load_adapter, registered
from unified_ipu.errors import ConfigError
from unified_ipu.testing.subject import Subject

GROUP = "unified_ipu.conformance"
"""Entry points ``NAME = "package.module:Class"``: the subject of the adapter NAME."""


def find_subject(name: str, where: Optional[str] = None) -> Subject:
    """Make the subject of an adapter.

    Args:
        name: Of the adapter, as registered.
        where: ``"module:Class"`` instead of the registered one.

    Raises:
        ConfigError: If there is no such adapter, or no such subject, or it is of another adapter.
        AdapterLoadError: If the adapter cannot be imported.
    """
    if name not in available_adapters():
        known = ", ".join(available_adapters()) or "none"
        raise ConfigError(f"there is no adapter {name!r}; installed: {known}")
    load_adapter(name)
    subject = _load(name, where)()
    if getattr(subject, "adapter", None) != name:
        raise ConfigError(
            f"{type(subject).__qualname__} is a subject of the adapter "
            f"{getattr(subject, 'adapter', None)!r}, not of {name!r}"
        )
    return cast("Subject", subject)


def runs_in_threads(subject: Subject) -> bool:
    """Whether its ranks may be threads of one process: its class says ``threads = True``."""
    return bool(getattr(subject, "threads", False))


def preloaded_by(subject: Subject) -> Tuple[str, ...]:
    """Modules that warm ranks import first: its class says ``preload = ("framework",)``."""
    return tuple(getattr(subject, "preload", ()))


def _load(name: str, where: Optional[str]) -> Any:
    if where is None:
        points = registered(GROUP)
        if name not in points:
            raise ConfigError(
                f"the adapter {name!r} registers no subject to test it with; pass "
                f"--subject module:Class, or register one in the group {GROUP!r}"
            )
        where = points[name].value
    module, _, attribute = where.partition(":")
    if not module or not attribute:
        raise ConfigError(f"--subject {where!r}: expected module:Class")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the subject {where!r} cannot be imported: {error}") from error

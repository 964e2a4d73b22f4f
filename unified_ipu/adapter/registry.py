"""Adapters by name, found through entry points; only the one that is asked for is imported."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import metadata
from typing import Any, Dict, List, Optional, Tuple

from unified_ipu.adapter.contract import Adapter
from unified_ipu.errors import AdapterLoadError, AdapterNotFoundError, ContractError

GROUP = "unified_ipu.adapters"

_loaded: Dict[Tuple[str, str], Adapter] = {}


def registered(group: str = GROUP) -> Dict[str, metadata.EntryPoint]:
    """Entry points of a group by name; imports none of them.

    Raises:
        ContractError: If one name is registered with two different targets.
    """
    points: Dict[str, metadata.EntryPoint] = {}
    for point in _entry_points(group, tuple(sys.path)):
        known = points.setdefault(point.name, point)
        if known.value != point.value:
            raise ContractError(
                point.name,
                f"registered twice in {group!r}: as {known.value!r} and as {point.value!r}; "
                "uninstall one of the two packages",
            )
    return points


@lru_cache(maxsize=None)
def _entry_points(group: str, path: Tuple[str, ...]) -> Tuple[metadata.EntryPoint, ...]:
    # Reading what is installed takes milliseconds, several times a session. ``path`` is only the
    # key; before an adapter is reported as missing, the cache is cleared for the next try.
    del path
    points: Any = metadata.entry_points()
    if hasattr(points, "select"):
        return tuple(points.select(group=group))
    return tuple(points.get(group, ()))  # a plain dict before Python 3.10


def available_adapters() -> Tuple[str, ...]:
    """Names of registered adapters, sorted. Imports none of them."""
    return tuple(sorted(registered()))


def load_adapter(name: str) -> Adapter:
    """Import and return the adapter of that name; its framework is imported when it is used.

    Raises:
        AdapterNotFoundError: If no adapter of that name is registered.
        AdapterLoadError: If its package, or something that package imports, is absent.
    """
    points = registered()
    if name not in points:
        _entry_points.cache_clear()
        known = ", ".join(sorted(points)) or "none"
        raise AdapterNotFoundError(
            name, f"no such adapter; registered: {known}. Install the package that brings it"
        )
    point = points[name]
    key = (point.name, point.value)
    if key not in _loaded:
        try:
            _loaded[key] = point.load()()
        except ImportError as error:
            raise AdapterLoadError(
                name, f"registered as {point.value!r}, but its import failed: {error}"
            ) from error
    return _loaded[key]


def find_adapter(model: Any, name: Optional[str] = None) -> Adapter:
    """Return the adapter named ``name``, or the one that accepts ``model``.

    Raises:
        AdapterNotFoundError: If none accepts the model, or the named one does not.
        AdapterLoadError: If the named adapter's package is absent.
    """
    if name is not None:
        adapter = load_adapter(name)
        if not adapter.accepts(model):
            raise AdapterNotFoundError(
                name, f"does not accept a model of type {type(model).__qualname__}"
            )
        return adapter
    refused: List[str] = []
    for candidate in available_adapters():
        try:
            adapter = load_adapter(candidate)
        except AdapterLoadError as error:
            refused.append(f"{candidate} ({error.message})")
            continue
        if adapter.accepts(model):
            return adapter
        refused.append(candidate)
    _entry_points.cache_clear()
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    asked = ", ".join(refused) or "none registered"
    raise AdapterNotFoundError(
        "auto",
        f"no adapter accepts a model of type {kind}; asked: {asked}. Pass adapter=, "
        "or install the adapter of that framework",
    )

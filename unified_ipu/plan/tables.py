"""Laying tables of plain values over one another."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from unified_ipu.errors import PlanError


def expand_dotted(settings: Mapping[str, Any]) -> Dict[str, Any]:
    """``{"a.b": 1, "a.c": 2}`` as ``{"a": {"b": 1, "c": 2}}``.

    Args:
        settings: Values by dotted path.

    Returns:
        Nested tables.

    Raises:
        PlanError: If a part of a path is empty.
    """
    tables: Dict[str, Any] = {}
    for path, value in settings.items():
        nested = value
        for part in reversed(path.split(".")):
            if not part:
                raise PlanError(
                    f"{path!r} is no setting; expected a dotted path such as batch.micro_batch_size"
                )
            nested = {part: nested}
        tables = overlay(tables, nested)
    return tables


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> Dict[str, Any]:
    """Merge two nested tables; ``above`` wins setting by setting.

    ``batch.global_batch_size`` and ``batch.accumulation_per_replica`` say the same thing in two
    ways: a layer that gives only one of them takes the place of both in the layers below.

    Args:
        below: Left as it is.
        above: Left as it is.

    Returns:
        New tables.
    """
    merged = dict(below)
    for name, value in above.items():
        under = below.get(name)
        if isinstance(value, Mapping) and isinstance(under, Mapping):
            if name == "batch":
                under = _without_overruled(under, value)
            merged[name] = overlay(under, value)
        else:
            merged[name] = value
    return merged


def _without_overruled(under: Mapping[str, Any], batch: Mapping[str, Any]) -> Dict[str, Any]:
    pair = ("global_batch_size", "accumulation_per_replica")
    given = [name for name in pair if batch.get(name) is not None]
    if len(given) != 1:
        return dict(under)
    return {name: value for name, value in under.items() if name not in pair}

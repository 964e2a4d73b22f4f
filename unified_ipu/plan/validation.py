"""From msgspec's checks to ``PlanError``: what was given, what is expected, the nearest name.

msgspec stops at the first fault, gives it a path, and does not list what is allowed; it checks
nothing in a constructor. So every table checks itself after it is made, with the same rules.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

import msgspec

from unified_ipu.errors import PlanError

T = TypeVar("T")

_PATH = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(.*?)`", re.DOTALL)
_HINTS: Dict[type, Dict[str, Any]] = {}


def convert(data: Mapping[str, Any], kind: Type[T]) -> T:
    """Make a checked struct of plain values.

    Args:
        data: Nested tables of plain values.
        kind: A msgspec struct.

    Returns:
        The struct.

    Raises:
        PlanError: Naming the path of the first wrong setting.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, PlanError):
            raise error.__cause__ from None
        raise PlanError(_translated(str(error), data, kind)) from None


def check_fields(struct: msgspec.Struct, section: str) -> None:
    """Check the values of a struct that was made by its constructor.

    Args:
        struct: A table of the plan; its tables check themselves.
        section: Name of the table in the plan, empty for the plan itself.

    Raises:
        PlanError: Naming the path of the first wrong setting.
    """
    for name, hint in hints(type(struct)).items():
        value = getattr(struct, name)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            # A subclass of the table is a table too; a dictionary is not, it would go unchecked.
            if not isinstance(value, hint):
                raise PlanError(refusal(join(section, name), value, f"a {hint.__name__}"))
            continue
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            raise PlanError(refusal(join(section, name), value, describe(hint))) from None


def hints(kind: type) -> Dict[str, Any]:
    """Types of a struct's fields, by name."""
    if kind not in _HINTS:
        if sys.version_info >= (3, 9):
            from typing import get_type_hints
        else:
            from typing_extensions import get_type_hints
        found = get_type_hints(kind, include_extras=True)
        fields: Tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]  # msgspec
        _HINTS[kind] = {name: found[name] for name in fields}
    return _HINTS[kind]


def describe(hint: Any) -> str:
    """What a setting may be, in words: ``"auto" or an integer >= 1``."""
    extras = getattr(hint, "__metadata__", ())
    if extras:
        return describe(hint.__origin__) + _bounds(extras)
    if getattr(hint, "__origin__", None) is Union:
        parts = [part for part in hint.__args__ if part is not type(None)]
        return " or ".join(describe(part) for part in parts)
    if hasattr(hint, "__args__"):  # Literal
        return _listed([shown(word) for word in hint.__args__])
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    return names.get(hint, "a table")


def shown(value: Any) -> str:
    """A value as the user would write it."""
    if value is None:
        return "nothing"
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def refusal(path: str, given: Any, expected: str) -> str:
    """What to say about a wrong value."""
    return f"{path}: got {shown(given)}; expected {expected}"


def unknown_setting(path: str, allowed: Tuple[str, ...]) -> str:
    """What to say about a name that does not exist, with the nearest one that does."""
    name = path.rpartition(".")[2]
    near = difflib.get_close_matches(name, allowed, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{path}: no such setting{guess} allowed: {', '.join(allowed)}"


def join(section: str, name: str) -> str:
    """Path of ``name`` inside ``section``."""
    return f"{section}.{name}" if section else name


def _translated(text: str, data: Any, kind: Any) -> str:
    found = _PATH.search(text)
    path = found.group(1) if found else ""
    given: Any = data
    hint: Any = kind
    for part in path.split(".") if path else ():
        given = given.get(part) if isinstance(given, Mapping) else None
        hint = hints(hint).get(part) if _is_struct(hint) else None
    unknown = _UNKNOWN.search(text)
    if unknown and _is_struct(hint):
        return unknown_setting(join(path, unknown.group(1)), tuple(hints(hint)))
    return refusal(path or "plan", given, describe(hint))


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _bounds(extras: Tuple[Any, ...]) -> str:
    bounds: List[str] = []
    for meta in extras:
        for sign, bound in ((">=", meta.ge), (">", meta.gt), ("<=", meta.le), ("<", meta.lt)):
            if bound is not None:
                bounds.append(f"{sign} {bound:g}")
    return " " + " and ".join(bounds) if bounds else ""


def _listed(words: List[str]) -> str:
    last: Optional[str] = words[-1]
    return f"{', '.join(words[:-1])} or {last}" if len(words) > 1 else f"{last}"

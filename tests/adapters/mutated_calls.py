"""Lowerings with one native call changed: ways to get a device wrong that its API accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

from unified_ipu.adapter import Lowering

Change = Callable[[Lowering], Lowering]


def replaced(name: str, value: Any) -> Change:
    """Give a training call another value; it must be there, and must have had another one."""

    def change(found: Lowering) -> Lowering:
        calls = [call for call in found.calls if _is(call, name)]
        assert len(calls) == 1, f"{name}: {len(calls)} calls"
        assert calls[0].value != value, f"{name} is {value!r} already"
        changed = [replace(call, value=value) if _is(call, name) else call for call in found.calls]
        return replace(found, calls=tuple(changed))

    return change


def without(name: str) -> Change:
    """Leave out a training call that must be there."""

    def change(found: Lowering) -> Lowering:
        calls = tuple(call for call in found.calls if not _is(call, name))
        assert len(calls) == len(found.calls) - 1, f"{name}: not one call"
        return replace(found, calls=calls)

    return change


def applied(change: Change, lower: Callable[..., Lowering]) -> Callable[..., Lowering]:
    """A ``lower_for_ipu`` with one change."""

    def changed(*arguments: Any) -> Lowering:
        return change(lower(*arguments))

    return changed


def _is(call: Any, name: str) -> bool:
    return bool(call.program == "training" and call.name == name)

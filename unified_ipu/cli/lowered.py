"""What a plan becomes on a device, for each adapter: native calls, shapes, refusals."""

from __future__ import annotations

from typing import List

from unified_ipu.adapter import Lowering, NativeCall, available_adapters, load_adapter
from unified_ipu.errors import AdapterError
from unified_ipu.plan import Plan

WIDEST = 80  # a longer call moves its own comment only


def lowered(plan: Plan, target: str) -> str:
    """Ask every registered adapter.

    Args:
        plan: Any valid plan.
        target: A target of a device.

    Returns:
        Lines of text, each ended.
    """
    parts = []
    for name in available_adapters():
        try:
            found = load_adapter(name).lower(plan, target)
        except AdapterError as error:
            parts.append(f"{name} on {target}\n  cannot be asked: {error.message}\n")
            continue
        parts.append(describe(found))
    return "\n".join(parts)


def describe(found: Lowering) -> str:
    """Write down one adapter's answer.

    Args:
        found: What ``lower`` returned.
    """
    lines: List[str] = [f"{found.adapter} on {found.target}"]
    call = found.device_call
    if call is not None:
        lines += [
            f"  IPUs              {call.ipus} in each of {call.processes} process(es)",
            f"  host batch        {call.host_rows} rows a call and process: {call.order}",
            f"  samples           {call.samples} a call over the world",
        ]
    for program in dict.fromkeys(each.program for each in found.calls):
        lines.append(f"  {program}")
        lines += _aligned([each for each in found.calls if each.program == program])
    for title, entries in (
        ("refused", [f"{field}: {reason}" for field, reason in found.refused]),
        ("notes", list(found.notes)),
    ):
        if entries:
            lines.append(f"  {title}")
            lines += [f"    {entry}" for entry in entries]
    return "\n".join(lines) + "\n"


def _aligned(calls: List[NativeCall]) -> List[str]:
    texts = [(f"{call.name}({native(call.value)})", call.field) for call in calls]
    width = max([len(text) for text, _ in texts if len(text) <= WIDEST], default=0)
    return [f"    {text:<{width}}  # {field}" for text, field in texts]


def native(value: object) -> str:
    """A value as it is written in a script; text that begins with ``=`` is native code."""
    if isinstance(value, str) and value.startswith("="):
        return value[1:]
    return repr(value)

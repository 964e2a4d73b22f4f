"""What an adapter needs to write a plan as a plain script of its SDK, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Protocol, Tuple, runtime_checkable

from unified_ipu.adapter.contract import Job, Lowering, NativeCall
from unified_ipu.plan import Plan

LINE = 88  # a longer call is written with one argument a line


@dataclass(frozen=True)
class EjectRequest:
    """What a script compiled and fitted, with the means to write its objects as text.

    Args:
        job: As ``session.compile`` got it.
        model: Expression that makes the model anew.
        write: ``(value, what it is) -> expression``: imports what the expression needs, and
            refuses by name what cannot be written as text.
        plan: Of the run.
        lowering: The plan as the SDK's own calls.
    """

    job: Job
    model: str
    write: Callable[[Any, str], str]
    plan: Plan
    lowering: Lowering


@dataclass(frozen=True)
class NativeText:
    """The part of a script that talks to an SDK.

    Args:
        sdk: What readers call it: ``"PopTorch"``.
        imports: Lines, in any order.
        definitions: Two things, and what they need: a function ``units_of(targets)`` that returns
            the weight in W of each row, float64 ``[rows]``; and a class ``Device`` without
            arguments, with ``run(factor, inputs, targets, coefficients) -> loss`` (one call, every
            array with all its rows on axis 0, every learning rate times ``factor``; the loss is
            the sum over its updates) and ``save(path)``.
        suffix: Of the file that ``save`` writes, such as ``".pt"``.
        notes: What a reader should know, one sentence each.
    """

    sdk: str
    imports: Tuple[str, ...]
    definitions: str
    suffix: str
    notes: Tuple[str, ...] = ()


@runtime_checkable
class Ejects(Protocol):
    """An adapter that can write its lowering as a script; not every adapter has to."""

    def eject(self, request: EjectRequest) -> NativeText:
        """Write what runs one process of the device.

        Raises:
            CapabilityError: If something of the job cannot be written, with what to change.
        """
        ...


def native(value: object) -> str:
    """A value as it is written in a script; text that begins with ``=`` is native code."""
    if isinstance(value, str) and value.startswith("="):
        return value[1:]
    return literal(value)


def literal(value: object) -> str:
    """A plain value as Python, strings in double quotes where that needs no escape."""
    if isinstance(value, str):
        text = repr(value)
        plain = text[1:-1]
        return text if '"' in plain or "\\" in plain or text[0] == '"' else f'"{plain}"'
    if isinstance(value, dict):
        inside = ", ".join(f"{literal(key)}: {literal(each)}" for key, each in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        inside = ", ".join(map(literal, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, float) and value in {float("inf"), -float("inf")}:
        return f'float("{value}")'
    return repr(value)


def call_text(name: str, arguments: Tuple[str, ...], *, indent: int, comments: Any = ()) -> str:
    """A call as a formatter would leave it: on one line, or with one argument a line.

    Args:
        name: All that stands before the parenthesis, an assignment included.
        arguments: Each as it is written.
        indent: Spaces before it.
        comments: ``{argument: comment}``; they force one argument a line.
    """
    line = f"{' ' * indent}{name}({', '.join(arguments)})"
    if len(line) <= LINE and not comments:
        return line
    inner = " " * (indent + 4)
    lines = [f"{' ' * indent}{name}("]
    for argument in arguments:
        comment = f"  # {comments[argument]}" if argument in comments else ""
        lines.append(f"{inner}{argument},{comment}")
    return "\n".join([*lines, f"{' ' * indent})"])


def setting_text(call: NativeCall, *, indent: int) -> str:
    """One native call of a lowering, with the field that it comes from."""
    return f"{' ' * indent}{call.name}({native(call.value)})  # {call.field}"

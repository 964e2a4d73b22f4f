"""The part of a new script that says what every learning rate is multiplied with."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Dict, List

from unified_ipu.adapter import literal
from unified_ipu.cli.writing import Writer
from unified_ipu.errors import ConfigError
from unified_ipu.plan import Plan

_HEAD = '''\
def rate_factor(update):
    """Return what every rate is multiplied with in the call that begins with ``update``."""
'''


def rate_text(schedule: Any, plan: Plan, *, size: int, writer: Writer, script: Path) -> str:
    """Write the factor by the number of updates that happened.

    Args:
        schedule: ``callable(update) -> factor`` or None.
        plan: Its ``[update]`` table scales and warms up.
        size: G, of the whole world.
        writer: Keeps imports.
        script: The script that is lowered.

    Raises:
        ConfigError: If the schedule cannot be written.
    """
    lines: List[str] = []
    scale = plan.update.lr_scale(size)
    warmup = plan.update.warmup_updates
    factors = []
    if scale != 1.0:
        lines.append(f"scale = {scale!r}  # update.lr_scaling")
        factors.append("scale")
    if warmup:
        lines.append(f"warmup_updates = {warmup}  # update.warmup_updates")
        factors.append("min(1.0, (update + 1) / warmup_updates)")
    if schedule is not None:
        code, constants = _scheduled(schedule, writer, script)
        lines += [f"{name} = {value}  # in {script.name}" for name, value in constants.items()]
        factors.append(f"({code})" if factors else code)
    lines.append(f"return {' * '.join(factors) or '1.0'}")
    return _HEAD + "".join(f"    {line}\n" for line in lines)


def _scheduled(schedule: Any, writer: Writer, script: Path) -> Any:
    """An expression of ``update``, and the values of the script that it uses.

    Raises:
        ConfigError: If it cannot be written.
    """
    if not isinstance(schedule, FunctionType):
        raise ConfigError(
            f"schedule= is a {type(schedule).__name__}, which is not written; pass a lambda or a "
            "function of a module, callable(update) -> factor"
        )
    if schedule.__name__ != "<lambda>":
        return f"{writer.write(schedule, 'schedule=')}(update)", {}
    node, text = _lambda(schedule.__code__, script)
    names = [each.arg for each in node.args.args]
    if len(names) != 1 or not text:
        raise ConfigError("schedule= is a lambda of other arguments than update")
    constants: Dict[str, str] = {}
    for name, value in _values(schedule).items():
        if isinstance(value, (bool, int, float)):
            constants[name] = literal(value)
        elif isinstance(value, (ModuleType, FunctionType)) or callable(value):
            _check_same_name(writer, name, value)
        else:
            raise ConfigError(
                f"schedule= uses {name}, a {type(value).__name__}; numbers and functions of "
                "modules can be written: move the schedule to a module beside the script"
            )
    if names[0] != "update":
        text = f"(lambda {names[0]}: {text})(update)"
    return " ".join(text.split()), constants


def _values(schedule: FunctionType) -> Dict[str, Any]:
    found = inspect.getclosurevars(schedule)
    return {**found.globals, **found.nonlocals}


def _check_same_name(writer: Writer, name: str, value: Any) -> None:
    written = writer.module(value) if isinstance(value, ModuleType) else writer.write(value, name)
    if written != name:
        raise ConfigError(
            f"schedule= calls {name}, which is {written} elsewhere; use that name in the script"
        )


def _lambda(code: CodeType, script: Path) -> Any:
    """The only lambda on a line of the script, and the text of its body.

    Raises:
        ConfigError: If there is another one on it, or it is no line of the script.
    """
    source = script.read_text(encoding="utf-8")
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno
    ]
    if code.co_filename != str(script) or len(found) != 1:
        raise ConfigError(
            f"schedule= is one of {len(found)} lambdas in line {code.co_firstlineno} of "
            f"{Path(code.co_filename).name}; write it on a line of its own in the script, or as a "
            "function of a module"
        )
    return found[0], ast.get_source_segment(source, found[0].body)

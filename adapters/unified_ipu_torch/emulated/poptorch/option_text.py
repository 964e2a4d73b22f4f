"""Options from text: a JSON table, or a file with one setter a line. Nothing is executed.

A line of a file is read as an expression and walked: calls of setters, names of ``poptorch``, and
literals; anything else is refused.

Source: PopTorch 3.4, ``python/options.py`` (``from_json``) and ``python/_options_config.py``, which
executes the file as Python.
"""

from __future__ import annotations

import ast
import json
from importlib import import_module
from pathlib import Path
from typing import Any, List, NoReturn

from unified_ipu_torch.emulated.poptorch import enums


class ConfigFileError(Exception):
    """A line of an options file is not a setter call."""


def set_from_json(options: Any, text: str) -> None:
    """Call a setter for each entry.

    Args:
        options: Changed in place.
        text: A table from the (dotted) name of a setter to its argument, or to a list of them.

    Raises:
        AttributeError: If there is no such setter.
    """
    for path, value in json.loads(text).items():
        setter = options
        for name in path.split("."):
            setter = getattr(setter, name)
        if isinstance(value, list):
            setter(*value)
        else:
            setter(_enum_member(value))


def set_from_file(options: Any, path: str) -> None:
    """Call the setters of a file.

    Args:
        options: Changed in place.
        path: Each line one call without the leading ``options.``; ``#`` starts a comment.

    Raises:
        ConfigFileError: If a line is anything else.
    """
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    calls = [f"options.{line}" for line in lines if line and not line.startswith("#")]
    try:
        tree = ast.parse("\n".join(calls))
    except SyntaxError as error:
        # Python 3.10 and later tell which bracket; the SDK's Python does not.
        is_open = "was never closed" in str(error.msg)
        detail = "unexpected EOF while parsing" if is_open else error.msg
        line = calls[(error.lineno or 1) - 1]
        raise ConfigFileError(
            f"SyntaxError at line {error.lineno} of {Path(path).name}: {detail}\n> {line}"
        ) from error
    walk = _Walk(options, Path(path).name, calls)
    for statement in tree.body:
        walk.call(statement)


def _enum_member(value: Any) -> Any:
    if not isinstance(value, str) or value.count(".") != 1:
        return value
    kind, _, member = value.partition(".")
    return getattr(getattr(enums, kind, None), member, value)


class _Walk:
    """Gives the value of the few kinds of expression that an options file needs."""

    def __init__(self, options: Any, file_name: str, lines: List[str]) -> None:
        self._options = options
        self._file_name = file_name
        self._lines = lines

    def call(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            self._refuse(statement, "expected one call of a setter")
        self._value(statement.value)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Call):
            owner = self._value(node.func)
            keywords = {str(item.arg): self._value(item.value) for item in node.keywords}
            return owner(*[self._value(item) for item in node.args], **keywords)
        if isinstance(node, ast.Attribute):
            if node.attr.startswith("_") and node.attr != "_Popart":
                self._refuse(node, f"{node.attr} is private")
            return getattr(self._value(node.value), node.attr)
        if isinstance(node, ast.Name):
            return self._name(node)
        try:
            return ast.literal_eval(node)
        except ValueError:
            self._refuse(node, "expected names of poptorch and literals only")

    def _name(self, node: ast.Name) -> Any:
        if node.id not in {"options", "poptorch"}:
            self._refuse(node, f"unknown name {node.id}")
        if node.id == "options":
            return self._options
        return import_module("unified_ipu_torch.emulated.poptorch")

    def _refuse(self, node: ast.AST, reason: str) -> NoReturn:
        number = getattr(node, "lineno", 1)
        raise ConfigFileError(
            f"line {number} of {self._file_name}: {reason}\n> {self._lines[number - 1]}"
        )

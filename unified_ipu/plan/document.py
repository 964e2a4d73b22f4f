"""Plan files: reading TOML and JSON, writing TOML."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, TypeVar, Union

from unified_ipu.errors import PlanError

T = TypeVar("T")


def parse_toml(text: str) -> Dict[str, Any]:
    """Parse TOML.

    Args:
        text: A whole document.

    Returns:
        Nested tables.

    Raises:
        PlanError: If the text is not TOML, with the line.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"not TOML: {error}") from error


def parse_json(text: str) -> Dict[str, Any]:
    """Parse JSON.

    Args:
        text: A whole document.

    Returns:
        Nested tables.

    Raises:
        PlanError: If the text is not JSON, with the line, or no object.
    """
    try:
        tables = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"not JSON: {error}") from error
    if not isinstance(tables, dict):
        raise PlanError(f"got a JSON {type(tables).__name__}; expected an object of settings")
    return tables


def read_tables(path: Union[str, Path]) -> Dict[str, Any]:
    """Read the tables of a file as they are written there.

    Args:
        path: A file that ends in ``.json`` is JSON, any other is TOML.

    Returns:
        Nested tables.

    Raises:
        PlanError: If the file is missing, or cannot be read or parsed.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise PlanError(f"{path}: cannot read the plan: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: not UTF-8 text: {error}") from error
    parse = parse_json if path.suffix.lower() == ".json" else parse_toml
    try:
        return parse(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def read_document(path: Union[str, Path], build: Callable[[Mapping[str, Any]], T]) -> T:
    """Read a file and build something of its tables, naming the file in every error.

    Args:
        path: A file that ends in ``.json`` is JSON, any other is TOML.
        build: Takes the tables; may raise ``PlanError``.

    Returns:
        What ``build`` made.

    Raises:
        PlanError: If the file is missing, cannot be read or parsed, or ``build`` refuses it.
    """
    tables = read_tables(path)
    try:
        return build(tables)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def format_toml(tables: Mapping[str, Any]) -> str:
    """Write nested tables as TOML; absent settings (None) are left out.

    Args:
        tables: Scalars and tables of scalars.

    Returns:
        A document that ``parse_toml`` reads back.
    """
    lines = [
        f"{name} = {_scalar(value)}"
        for name, value in tables.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_scalar(item)}" for key, item in table.items() if item is not None]
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str):
        # JSON's escapes are all valid in TOML, but TOML wants this one control character escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)

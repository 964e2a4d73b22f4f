"""Carrying out a lowering: native calls as they are written, made on a framework's own objects.

Native code in them is read, not executed: names, attributes, calls and literals, nothing else.
"""

from __future__ import annotations

import ast
import operator
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from unified_ipu.adapter.contract import NativeCall
from unified_ipu.errors import ConfigError

Arguments = Tuple[List[Any], Dict[str, Any]]


def apply_native_calls(
    calls: Sequence[NativeCall], objects: Mapping[str, Any], names: Mapping[str, Any]
) -> None:
    """Make the calls that begin with one of ``objects``, in order; leave the others.

    ``options.deviceIterations`` is called with its value if it can be called, else set to it.

    Args:
        calls: Of one program.
        objects: What is configured, by the first word of the calls: ``{"options": options}``.
        names: What native code in their values may name: ``{"poptorch": poptorch}``.

    Raises:
        ConfigError: If an object has no such name, or a value is more than names, attributes,
            calls and literals.
    """
    for call in calls:
        first, *path = call.name.split(".")
        if first not in objects or not path:
            continue
        owner = objects[first]
        for word in path[:-1]:
            owner = _attribute(owner, word, call.name)
        positional, keywords = native_arguments(call.value, names)
        target = _attribute(owner, path[-1], call.name)
        if callable(target):
            target(*positional, **keywords)
        elif len(positional) == 1 and not keywords:
            setattr(owner, path[-1], positional[0])
        else:
            raise ConfigError(f"{call.name} is set, not called; expected one value: {call.value!r}")


def native_value(calls: Sequence[NativeCall], name: str, names: Mapping[str, Any]) -> Any:
    """Return the one value of the last call of that name.

    Args:
        calls: Of one program.
        name: As it is written.
        names: As for ``apply_native_calls``.

    Raises:
        ConfigError: If there is no such call, or it has not one value.
    """
    found = [call for call in calls if call.name == name]
    if not found:
        raise ConfigError(f"the lowering has no {name}")
    positional, keywords = native_arguments(found[-1].value, names)
    if len(positional) != 1 or keywords:
        raise ConfigError(f"{name} has not one value: {found[-1].value!r}")
    return positional[0]


def native_arguments(value: Any, names: Mapping[str, Any]) -> Arguments:
    """Arguments that the value of a native call stands for.

    Args:
        value: A plain value, or text that begins with ``=``: arguments as they are written.
        names: What that text may name.

    Raises:
        ConfigError: If the text is more than names, attributes, calls and literals.
    """
    if not isinstance(value, str) or not value.startswith("="):
        return [value], {}
    try:
        call = ast.parse(f"f({value[1:]})", mode="eval").body
    except SyntaxError as error:
        raise ConfigError(f"{value!r} is no list of arguments: {error.msg}") from error
    if not isinstance(call, ast.Call):
        raise ConfigError(f"{value!r} is no list of arguments")
    return _arguments(call, names)


def _arguments(call: ast.Call, names: Mapping[str, Any]) -> Arguments:
    keywords: Dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ConfigError("native code may not unpack dictionaries")
        keywords[keyword.arg] = _read(keyword.value, names)
    return [_read(argument, names) for argument in call.args], keywords


_ARITHMETIC: Dict[Any, Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
}


def _read(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ConfigError(f"native code names {node.id!r}; known here: {sorted(names)}")
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return _attribute(_read(node.value, names), node.attr, ast.dump(node))
    if isinstance(node, ast.Call):
        positional, keywords = _arguments(node, names)
        return _read(node.func, names)(*positional, **keywords)
    if isinstance(node, (ast.Tuple, ast.List)):
        items = [_read(item, names) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_read(node.left, names), _read(node.right, names))
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ConfigError(
            f"native code holds a {type(node).__name__}; expected names, attributes, calls, sums, "
            "products and literals"
        ) from error


def _attribute(owner: Any, name: str, whole: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise ConfigError(f"{type(owner).__name__} has no {name!r} (in {whole})") from error

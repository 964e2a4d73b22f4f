"""Plain values and calls as lines of a Python script, laid out as formatters would."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Mapping, Optional, Sequence, Tuple

from unified_ipu.adapter.contract import NativeCall

LINE = 88  # a longer call is written with one argument a line


def literal(value: object) -> str:
    """A plain value as Python, strings in double quotes where that needs no escape."""
    if isinstance(value, str):
        text = repr(value)
        inside = text[1:-1]
        return text if '"' in inside or "\\" in inside or text[0] == '"' else f'"{inside}"'
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


def native_code(value: object) -> str:
    """A value of a lowering as it is written: text that begins with ``=`` is code already."""
    if isinstance(value, str) and value.startswith("="):
        return _double_quoted(value[1:])
    return literal(value)


def _double_quoted(code: str) -> str:
    """Code with its texts as ``literal`` writes them."""
    pieces, end = [], 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.STRING:
            pieces += [code[end : token.start[1]], literal(ast.literal_eval(token.string))]
            end = token.end[1]
    return "".join([*pieces, code[end:]])


def call_text(
    name: str,
    arguments: Sequence[str],
    *,
    indent: int,
    comments: Optional[Mapping[str, str]] = None,
) -> str:
    """A call on one line, or with one argument a line.

    Args:
        name: All that stands before the parenthesis, an assignment included.
        arguments: Each as it is written.
        indent: Spaces before it.
        comments: ``{argument: comment}``; they force one argument a line.
    """
    line = f"{' ' * indent}{name}({', '.join(arguments)})"
    if not comments and len(line) <= LINE:
        return line
    inner = " " * (indent + 4)
    lines = [f"{' ' * indent}{name}("]
    for argument in arguments:
        comment = (comments or {}).get(argument)
        lines.append(f"{inner}{argument}," + (f"  # {comment}" if comment else ""))
    return "\n".join([*lines, f"{' ' * indent})"])


def expression_text(prefix: str, expression: str, *, indent: int, suffix: str = "") -> str:
    """An expression behind ``prefix``; calls, lists and the like broken where it is too long.

    Args:
        prefix: Such as ``"self.model = "``.
        expression: On one line.
        indent: Spaces before the first line.
        suffix: Behind it, such as a comma.
    """
    line = f"{' ' * indent}{prefix}{expression}{suffix}"
    node = ast.parse(expression, mode="eval").body
    parts = _parts(node, expression)
    if len(line) <= LINE or parts is None:
        return line
    opening, inside, closing = parts
    lines = [f"{' ' * indent}{prefix}{opening}"]
    for name, part in inside:
        lines.append(expression_text(name, part, indent=indent + 4, suffix=","))
    return "\n".join([*lines, f"{' ' * indent}{closing}{suffix}"])


def _parts(node: ast.expr, text: str) -> Optional[Tuple[str, Sequence[Tuple[str, str]], str]]:
    """What opens an expression that can be broken, its parts, and what closes it."""

    def part(each: ast.expr) -> str:
        return ast.get_source_segment(text, each) or ""

    if isinstance(node, ast.Call):
        named = [(f"{each.arg}=" if each.arg else "**", part(each.value)) for each in node.keywords]
        return f"{part(node.func)}(", [*(("", part(each)) for each in node.args), *named], ")"
    if isinstance(node, ast.List):
        return "[", [("", part(each)) for each in node.elts], "]"
    if isinstance(node, ast.Tuple):
        return "(", [("", part(each)) for each in node.elts], ")"
    if isinstance(node, ast.Dict) and None not in node.keys:
        pairs = zip(node.keys, node.values)
        return "{", [(f"{part(key)}: ", part(value)) for key, value in pairs if key], "}"
    return None


def setting_text(call: NativeCall, *, indent: int) -> str:
    """One native call of a lowering, with the field that it comes from behind or above it."""
    return _with_field(call, "", f"{call.name}({native_code(call.value)})", indent)


def assignment_text(call: NativeCall, *, indent: int) -> str:
    """The same, of an SDK where a setting is an attribute."""
    return _with_field(call, f"{call.name} = ", native_code(call.value), indent)


def _with_field(call: NativeCall, prefix: str, code: str, indent: int) -> str:
    line = f"{' ' * indent}{prefix}{code}  # {call.field}"
    if len(line) <= LINE:
        return line
    return f"{' ' * indent}# {call.field}\n{expression_text(prefix, code, indent=indent)}"

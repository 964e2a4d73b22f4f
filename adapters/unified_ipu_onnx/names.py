"""ONNX names as names that a torch module can hold, and back.

Torch refuses "." and the empty name, and a parameter must not hide an attribute of the module.
What it refuses is written as %XX, as in a URL; all other names stay what they are.
"""

from __future__ import annotations

from typing import Container
from urllib.parse import unquote


def escape(name: str, reserved: Container[str] = ()) -> str:
    """Return a name for ``torch.nn.Module.register_parameter``.

    Args:
        name: Any ONNX name.
        reserved: Names that the module has already.

    Returns:
        A name without "." from which ``unescape`` makes ``name`` again.
    """
    if not name:
        return "%"
    escaped = name.replace("%", "%25").replace(".", "%2E")
    if escaped in reserved:
        first = "".join(f"%{byte:02X}" for byte in escaped[0].encode())
        escaped = first + escaped[1:]
    return escaped


def unescape(name: str) -> str:
    """Return the ONNX name that ``escape`` was given."""
    return "" if name == "%" else unquote(name)

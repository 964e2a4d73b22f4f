"""Sources of frameworks, found by entry points, and what they do before their first operation."""

from __future__ import annotations

import sys
from typing import Any

from unified_ipu.adapter import registered
from unified_ipu.errors import AdapterLoadError

GROUP = "unified_ipu.sources"


def load_source(point: Any) -> Any:
    """Import what makes the samples of a kind.

    Args:
        point: Its entry point.

    Returns:
        The class or function behind it.

    Raises:
        AdapterLoadError: If it cannot be imported, with the package to install.
    """
    try:
        return point.load()
    except ImportError as error:
        raise AdapterLoadError(
            point.name,
            f"its source cannot be imported ({error}); install it with: "
            f"pip install 'unified-ipu[{point.name}]'",
        ) from error


def take_process(kind: str = "") -> None:
    """Let frameworks leave the accelerators alone: this process only makes data.

    Args:
        kind: Of the source that is about to be used; else only what is imported is asked.
    """
    _ask("take_process", kind)


def share_process(threads: int, kind: str = "") -> None:
    """Let frameworks make room for a model in this process.

    Args:
        threads: For each of their pools, where other ranks share the cores; 0 leaves them.
        kind: Of the source that is about to be used; else only what is imported is asked.
    """
    _ask("share_process", kind, threads)


def _ask(what: str, kind: str, *values: Any) -> None:
    for name, point in registered(GROUP).items():
        if name == kind or name in sys.modules:
            function = getattr(load_source(point), what, None)
            if function is not None:
                function(*values)

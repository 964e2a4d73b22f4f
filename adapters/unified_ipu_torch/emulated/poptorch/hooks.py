"""Functions that are called before and after each compilation.

Source: PopTorch 3.4, ``python/_poplar_executor.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict

from torch.utils.hooks import RemovableHandle

Hook = Callable[[], Any]
_before: Dict[int, Hook] = OrderedDict()
_after: Dict[int, Hook] = OrderedDict()


def _register(hooks: Dict[int, Hook], hook: Hook, word: str) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{word}-compile hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Have a function called before each compilation.

    Args:
        hook: Takes nothing.

    Returns:
        A handle, whose ``remove`` takes it away.
    """
    return _register(_before, hook, "Pre")


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Have a function called after each compilation.

    Args:
        hook: Takes nothing.

    Returns:
        A handle, whose ``remove`` takes it away.
    """
    return _register(_after, hook, "Post")


def run_pre_compile_hooks() -> None:
    """A compilation begins."""
    for hook in list(_before.values()):
        hook()


def run_post_compile_hooks() -> None:
    """A compilation is over, with success or not."""
    for hook in list(_after.values()):
        hook()

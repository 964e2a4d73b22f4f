"""Models made in the scope of an ``IPUStrategy`` get the methods of IPU Keras.

Source: Graphcore's Keras of SDK 3.4, ``keras/ipu/extensions/register_extensions.py``: the class of
an instance is changed when it is made, so that there is no wrapper.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List

import tensorflow as tf

from unified_ipu_tensorflow.emulated.keras.extension import Extension
from unified_ipu_tensorflow.emulated.keras.options import ModelState

_extended: Dict[type, type] = {}
_lock = threading.Lock()
_entered: List[Any] = []
"""The class's own ``__new__``, once for each scope that is open in any thread."""


class _Scopes(threading.local):
    """The strategies of one thread, the innermost last."""

    def __init__(self) -> None:
        self.strategies: List[Any] = []


_scopes = _Scopes()


@contextmanager
def models_are_extended(strategy: Any) -> Iterator[None]:
    """Extend every Keras model that this thread makes inside.

    Args:
        strategy: Whose device it will run on.
    """
    base = tf.keras.Model
    with _lock:
        own = _entered[0] if _entered else base.__dict__["__new__"]
        if not _entered:
            base.__new__ = _made_by(own)
        _entered.append(own)
    _scopes.strategies.append(strategy)
    try:
        yield
    finally:
        _scopes.strategies.pop()
        with _lock:
            own = _entered.pop()
            if not _entered:
                base.__new__ = own


def _made_by(original: Any) -> Any:
    make = original.__func__ if isinstance(original, staticmethod) else original

    def new(kind: type, *args: Any, **kwargs: Any) -> Any:
        made = make(kind, *args, **kwargs)
        is_inside = bool(_scopes.strategies)  # other threads may have scopes of their own
        if is_inside and isinstance(made, tf.keras.Model) and not isinstance(made, Extension):
            object.__setattr__(made, "_ipu_state", ModelState(_scopes.strategies[-1]))
            object.__setattr__(made, "__class__", _extend(type(made)))
        return made

    return staticmethod(new)


def _extend(kind: type) -> type:
    """The class with the extension's methods before its own; its name stays."""
    found = _extended.get(kind)
    if found is None:
        body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        found = _extended[kind] = type(kind)(kind.__name__, (Extension, kind), body)
    return found

"""Models made in the scope of an ``IPUStrategy`` get the methods of IPU Keras.

Source: Graphcore's Keras of SDK 3.4, ``keras/ipu/extensions/register_extensions.py``: the class of
an instance is changed when it is made, so that there is no wrapper.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List

import tensorflow as tf

from unified_ipu_tensorflow.emulated.keras.extension import Extension
from unified_ipu_tensorflow.emulated.keras.options import ModelState

_extended: Dict[type, type] = {}
_strategies: List[Any] = []


@contextmanager
def models_are_extended(strategy: Any) -> Iterator[None]:
    """Extend every Keras model that is made inside.

    Args:
        strategy: Whose device it will run on.
    """
    base = tf.keras.Model
    original = base.__dict__["__new__"]
    _strategies.append(strategy)
    if len(_strategies) == 1:
        base.__new__ = _made_by(original)
    try:
        yield
    finally:
        _strategies.pop()
        if not _strategies:
            base.__new__ = original


def _made_by(original: Any) -> Any:
    make = original.__func__ if isinstance(original, staticmethod) else original

    def new(kind: type, *args: Any, **kwargs: Any) -> Any:
        made = make(kind, *args, **kwargs)
        if isinstance(made, tf.keras.Model) and not isinstance(made, Extension):
            object.__setattr__(made, "_ipu_state", ModelState(_strategies[-1]))
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

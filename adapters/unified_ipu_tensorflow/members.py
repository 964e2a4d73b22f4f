"""What lies in the attributes of a ``tf.Module``; Keras 3 layers too, which it does not list."""

from __future__ import annotations

from typing import Any, FrozenSet, Iterable, Iterator, Tuple

import tensorflow as tf


def members(module: Any) -> Iterator[Tuple[str, Any]]:
    """Yield every variable and Keras layer with its path, in the order of names of attributes.

    Args:
        module: A ``tf.Module``; its modules, lists, tuples and dicts are looked into.
    """
    yield from _inside(module, "", frozenset())


def _inside(thing: Any, name: str, open_modules: FrozenSet[int]) -> Iterator[Tuple[str, Any]]:
    if isinstance(thing, tf.Variable) or hasattr(type(thing), "_flatten_layers"):
        yield name, thing
        return
    children: Iterable[Tuple[Any, Any]] = ()
    if isinstance(thing, tf.Module) and id(thing) not in open_modules:
        open_modules = open_modules | {id(thing)}
        attributes = sorted(vars(thing).items())
        children = [(a.lstrip("_"), v) for a, v in attributes if not a.startswith("_self_")]
    elif isinstance(thing, dict):
        children = thing.items()
    elif isinstance(thing, (list, tuple)):
        children = enumerate(thing)
    for key, child in children:
        yield from _inside(child, f"{name}/{key}" if name else str(key), open_modules)

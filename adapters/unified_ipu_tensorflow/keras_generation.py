"""What differs between Keras 2 and Keras 3 in the variables of a model, behind one face.

Keras 3 has variables of its own around those of TensorFlow; what moves data is TensorFlow's. The
generation is looked up object by object, since ``tf_keras`` may be imported beside Keras 3.
"""

from __future__ import annotations

import sys
from typing import Any, Iterable, List, Optional, Sequence

import tensorflow as tf

from unified_ipu_tensorflow.members import members

PACKAGES = ("keras", "tf_keras")


def is_keras(thing: Any) -> bool:
    """Whether an object's class is one of Keras, of any generation, or derived from one."""
    return _package(thing) is not None


def is_keras3(thing: Any) -> bool:
    """Whether a layer, model, optimizer, loss or variable is one of Keras 3."""
    package = _package(thing)
    if package is None:
        return False
    version = str(getattr(sys.modules.get(package), "__version__", "2"))
    return int(version.partition(".")[0]) >= 3  # noqa: PLR2004 the generation


def keras_of(thing: Any) -> Any:
    """The package of Keras that an object's class is from; TensorFlow's own for anything else."""
    package = _package(thing)
    return tf.keras if package is None else sys.modules[package]


def variables_of(model: Any) -> List[Any]:
    """All variables of a model, each once: trained or not, states of random layers included.

    Args:
        model: A Keras model, a ``tf.Module``, or a callable that has ``trainable_variables``.

    Returns:
        Keras 3 variables or those of TensorFlow, in the framework's order.
    """
    return _once([*_listed(model, "variables"), *_listed(model, "trainable_variables")])


def trainable_of(model: Any) -> List[Any]:
    """Those of the variables that a gradient may change."""
    return _once(_listed(model, "trainable_variables"))


def _once(found: Iterable[Any]) -> List[Any]:
    seen = set()
    once = []
    for variable in found:
        key = id(tf_variable(variable))
        if key not in seen:
            seen.add(key)
            once.append(variable)
    return once


def tf_variable(variable: Any) -> Any:
    """The ``tf.Variable`` that holds the values of a variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def path_of(variable: Any) -> str:
    """The framework's own name of a variable, with slashes and without ``:0``."""
    path = getattr(variable, "path", None)
    if isinstance(path, str) and path:
        return path
    return str(variable.name).partition(":")[0]


def _listed(model: Any, name: str) -> Sequence[Any]:
    try:
        found = tuple(getattr(model, name, ()))
    except ValueError:
        if is_keras(model) and not model.built:
            return ()  # Keras 2 lists nothing of a Sequential without an input shape
        raise
    if isinstance(model, tf.Module) and not is_keras(model):
        layers = [member for _, member in members(model) if is_keras3(member)]
        found += tuple(variable for layer in layers for variable in getattr(layer, name))
    return found


def _package(thing: Any) -> Optional[str]:
    for kind in type(thing).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in PACKAGES:
            return root
    return None

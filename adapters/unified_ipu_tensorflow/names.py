"""Names of a model's variables that are the same in every process and in both Keras generations.

Keras counts automatic layer names over the whole process, so the second model built would have
other names than the first. Here a name is the path through the model's own layers: automatic names
are numbered from the beginning within each layer, names that the user gave stay.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Set, Tuple

import tensorflow as tf

from unified_ipu_tensorflow.keras_generation import (
    is_keras,
    is_keras3,
    path_of,
    tf_variable,
    trainable_of,
    variables_of,
)
from unified_ipu_tensorflow.members import members

_NUMBER = re.compile(r"_\d+$")
_WRAPPED = ("forward_", "backward_")  # what Bidirectional puts before its layers' names
_FUNCTIONAL = ("model", "functional")


class Named(NamedTuple):
    """One place in the model where a variable is.

    Args:
        name: Unique; with slashes.
        variable: The model's own: of Keras 3, or of TensorFlow.
        role: ``"parameter"`` or ``"buffer"``.
        sync: How a buffer is made equal over ranks.
    """

    name: str
    variable: Any
    role: str
    sync: str


def named_variables(model: Any) -> List[Named]:
    """Every variable under every path it has, in the order of the model's layers.

    Args:
        model: A Keras model or layer, a ``tf.Module``, or a callable that has
            ``trainable_variables``.

    Source: ours; ``test_names.py`` holds it on both generations.
    """
    found: List[Named] = []
    if is_keras(model):
        found += _of_layer(model, "", set())
    elif isinstance(model, tf.Module):
        found += _of_module(model)
    known = {id(tf_variable(entry.variable)) for entry in found}
    trained = {id(tf_variable(v)) for v in trainable_of(model)}
    taken: Dict[str, int] = {entry.name: 1 for entry in found}
    own = f"{getattr(model, 'name', '')}/"
    for variable in variables_of(model):  # those that lie where nobody looks for layers
        key = id(tf_variable(variable))
        if key not in known:
            path = path_of(variable)
            path = path[len(own) :] if path.startswith(own) else path
            role = "parameter" if key in trained else "buffer"
            found.append(Named(_unique(path, taken), variable, role, "first"))
    return found


def layers_of(layer: Any) -> List[Any]:
    """The layers directly inside a Keras layer or model, without metrics."""
    inside = layer._flatten_layers(include_self=False, recursive=False)  # noqa: SLF001 no other way
    return [one for one in inside if "Metric" not in {kind.__name__ for kind in type(one).__mro__}]


def all_layers(model: Any) -> Iterator[Tuple[str, Any]]:
    """Each layer inside a model with its name, in order; one that is used twice comes twice."""
    if is_keras(model):
        yield from _layers_below(model, "", {id(model)})
    elif isinstance(model, tf.Module):
        for name, layer in members(model):
            if is_keras(layer):
                yield name, layer
                yield from _layers_below(layer, f"{name}/", {id(layer)})


def _layers_below(layer: Any, prefix: str, open_layers: Set[int]) -> Iterator[Tuple[str, Any]]:
    for name, child in _named_layers(layer):
        if id(child) not in open_layers:  # a layer may hold its parent
            yield prefix + name, child
            yield from _layers_below(child, f"{prefix}{name}/", {*open_layers, id(child)})


def _of_layer(layer: Any, prefix: str, open_layers: Set[int]) -> Iterator[Named]:
    if id(layer) in open_layers:
        return
    taken: Dict[str, int] = {}
    is_norm = is_batch_normalization(layer)
    for variable, role, sync in _own_variables(layer):
        name = _local_name(variable)
        is_moving = is_norm and role == "buffer" and name.startswith("moving_")
        yield Named(prefix + _unique(name, taken), variable, role, "mean" if is_moving else sync)
    inside = {*open_layers, id(layer)}
    for name, child in _named_layers(layer):
        yield from _of_layer(child, f"{prefix}{name}/", inside)


def is_batch_normalization(layer: Any) -> bool:
    """Whether a layer keeps moving statistics of its micro-batches."""
    kinds = (kind.__name__ for kind in type(layer).__mro__)
    return any("BatchNormalization" in name for name in kinds)


def _own_variables(layer: Any) -> List[Tuple[Any, str, str]]:
    # Both generations keep these two lists; the public ones hide what a frozen layer has.
    if is_keras3(layer):
        trained, others = layer._trainable_variables, layer._non_trainable_variables  # noqa: SLF001
        states = [one.state for one in layer._seed_generators]  # noqa: SLF001
    else:
        trained, others = layer._trainable_weights, layer._non_trainable_weights  # noqa: SLF001
        states = []
    known = {id(state) for state in states}
    found = [(v, "parameter", "first") for v in trained]
    found += [(v, "buffer", "first") for v in others if id(v) not in known]
    return found + [(v, "buffer", "none") for v in states]


def _named_layers(layer: Any) -> List[Tuple[str, Any]]:
    taken: Dict[str, int] = {}
    return [(_unique(_stem(child), taken), child) for child in layers_of(layer)]


def _stem(layer: Any) -> str:
    """A layer's name, without its number if Keras made it."""
    name = str(layer.name)
    stem = _NUMBER.sub("", name)
    kind = type(layer).__name__
    bare = stem
    for prefix in _WRAPPED:
        if bare.startswith(prefix):
            bare = bare[len(prefix) :]
    if kind == "Functional" and bare in _FUNCTIONAL:
        return _FUNCTIONAL[-1]
    return stem if bare.replace("_", "") == kind.lower() else name


def _local_name(variable: Any) -> str:
    name = path_of(variable).rpartition("/")[2]
    stem = _NUMBER.sub("", name).lower()
    return stem if stem == "variable" else name  # a weight without a name


def _unique(name: str, taken: Dict[str, int]) -> str:
    """``name``, or ``name_1`` and so on where it is taken."""
    found = name
    while found in taken:
        found = f"{name}_{taken[name]}"
        taken[name] += 1
    taken[found] = taken.get(found, 1)
    return found


def _of_module(module: Any) -> Iterator[Named]:
    for name, member in members(module):
        if isinstance(member, tf.Variable):
            yield Named(name, member, "parameter" if member.trainable else "buffer", "first")
        else:
            yield from _of_layer(member, f"{name}/", set())

"""The named tensors of a model and its optimizer: what there is, copies out, values in."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from unified_ipu.adapter import TensorSpec, nearest
from unified_ipu.errors import ConfigError
from unified_ipu_tensorflow.keras_generation import tf_variable, trainable_of
from unified_ipu_tensorflow.names import Named
from unified_ipu_tensorflow.optimizers import Optimizer


class Catalog:
    """Canonical names over a live model.

    Args:
        named: Every variable of the model, from ``named_variables``.
        optimizer: What drives the weights, or None.
    """

    def __init__(self, named: Sequence[Named], optimizer: Optional[Optimizer]) -> None:
        parameters = [entry for entry in named if entry.role == "parameter"]
        buffers = [entry for entry in named if entry.role == "buffer"]
        self._named = [*parameters, *buffers]
        self._live: Dict[str, Any] = {e.name: tf_variable(e.variable) for e in self._named}
        self._optimizer = optimizer

    def specs(self) -> List[TensorSpec]:
        """Parameters, buffers and slots that exist now, in that order."""
        return [*self._model_specs(), *self._slot_specs()]

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """Copies as numpy arrays; bfloat16, which numpy lacks, comes as float32.

        Raises:
            ConfigError: If there is no such tensor.
        """
        live = {**self._live, **self._slots()}
        found = {}
        for name in names:
            if name not in live:
                raise ConfigError(f"there is no tensor {name!r}; {nearest(name, list(live))}")
            value = live[name].read_value()
            value = tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value
            found[name] = np.array(value.numpy(), order="C")
        return found

    def write(self, tensors: Mapping[str, Any]) -> None:
        """Overwrite in place; a slot that does not exist yet is made.

        Raises:
            ConfigError: If a name or a shape does not fit; nothing is written then.
        """
        live = {**self._live, **self._slots()}
        pairs: List[Tuple[Any, Any]] = []
        fresh: List[Tuple[str, Any]] = []
        for name, array in tensors.items():
            # TensorFlow may make this very memory the variable's, so it has to be nobody else's.
            value = np.array(array, order="C")
            if name in live:
                _check_shape(name, live[name], value)
                pairs.append((live[name], value))
            elif name.rpartition("/")[0] in self._trained():
                fresh.append((name, value))
            else:
                raise ConfigError(f"there is no tensor {name!r}; {nearest(name, list(live))}")
        for variable, value in pairs:
            _assign(variable, value)
        for name, value in fresh:
            made = None if self._optimizer is None else self._optimizer.make_slot(name)
            if made is None:
                raise ConfigError(f"there is no slot {name!r} in this optimizer")
            _check_shape(name, made, value)
            _assign(made, value)

    def _model_specs(self) -> Iterator[TensorSpec]:
        first: Dict[int, str] = {}
        trained = {id(variable) for variable in self._trained().values()}
        for entry in self._named:
            variable = self._live[entry.name]
            tied_to = first.get(id(variable))
            first.setdefault(id(variable), entry.name)
            yield TensorSpec(
                name=entry.name,
                shape=tuple(variable.shape),
                dtype=variable.dtype.name,
                role=entry.role,
                trainable=id(variable) in trained,
                tied_to=tied_to,
                sync=entry.sync,
            )

    def _slot_specs(self) -> Iterator[TensorSpec]:
        for name, slot in self._slots().items():
            yield TensorSpec(
                name=name,
                shape=tuple(slot.shape),
                dtype=slot.dtype.name,
                role="slot",
                trainable=False,
            )

    def _trained(self) -> Mapping[str, Any]:
        return {} if self._optimizer is None else self._optimizer.trained

    def _slots(self) -> Mapping[str, Any]:
        return {} if self._optimizer is None else self._optimizer.slots()


def trainable_variables(named: Sequence[Named], model: Any) -> Dict[str, Any]:
    """The model's own variables that a gradient may change, by their first name, each once."""
    allowed = {id(tf_variable(v)) for v in trainable_of(model)}
    found: Dict[str, Any] = {}
    for entry in named:
        key = id(tf_variable(entry.variable))
        if key in allowed:
            allowed.discard(key)
            found[entry.name] = entry.variable
    return found


def _check_shape(name: str, variable: Any, value: Any) -> None:
    if tuple(variable.shape) != value.shape:
        raise ConfigError(
            f"tensor {name!r} has shape {list(variable.shape)}, got {list(value.shape)}; "
            "write arrays of the model's own shapes"
        )


def _assign(variable: Any, value: Any) -> None:
    variable.assign(tf.cast(value, variable.dtype))

"""The host's side of weights and optimizer state: what was read back, and what is to be sent."""

from __future__ import annotations

from typing import Dict, Mapping

import numpy as np
import torch
from onnx import ModelProto, numpy_helper

from unified_ipu_onnx.emulated.popart.errors import popart_exception
from unified_ipu_onnx.emulated.popart.protos import tensor_of
from unified_ipu_onnx.tensors import to_torch

Tensors = Mapping[str, torch.Tensor]
_SLOTS = ("Accl___", "Accl1___", "Accl2___", "Step___")


class HostWeights:
    """Copies of weights on the host.

    Args:
        proto: Holds their first values, those of the optimizer's state too if they were saved.
    """

    def __init__(self, proto: ModelProto) -> None:
        self._proto = proto
        self._held: Dict[str, np.ndarray] = {}  # what weightsFromHost sends
        self._back: Dict[str, np.ndarray] = {}  # what weightsToHost brought

    def slots_of(self, weights: Tensors) -> Dict[str, torch.Tensor]:
        """State of the optimizer that the model holds."""
        names = {f"{prefix}{name}" for prefix in _SLOTS for name in weights}
        return {t.name: to_torch(t) for t in self._proto.graph.initializer if t.name in names}

    def hold(self, tensors: Tensors) -> None:
        """Start from these values."""
        self._held = {name: _copy(tensor) for name, tensor in tensors.items()}
        self._back = {name: array.copy() for name, array in self._held.items()}

    def to_device(self, tensors: Tensors) -> None:
        """Overwrite the device's tensors."""
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(self._held[name]))

    def from_device(self, tensors: Tensors) -> None:
        """Read the device's tensors back; they are what would be sent again, too."""
        self._back = {name: _copy(tensor) for name, tensor in tensors.items()}
        self._held = {name: array.copy() for name, array in self._back.items()}

    def read(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Fill those arrays that have a weight's name.

        Raises:
            popart_exception: If one has another shape or type.
        """
        for name, array in arrays.items():
            if name in self._back:
                _check(name, self._back[name], array)
                array[...] = self._back[name]

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over those arrays that have a weight's name.

        Raises:
            popart_exception: If one has another shape or type.
        """
        for name, array in arrays.items():
            if name in self._held:
                _check(name, self._held[name], array)
                self._held[name] = np.array(array)

    def reset(self, proto: ModelProto, *, ignore_unknown: bool) -> None:
        """Take over the initializers of a model.

        Raises:
            popart_exception: If it has a weight that is not known, or of another shape.
        """
        for tensor in proto.graph.initializer:
            if tensor.name in self._held:
                value = np.array(numpy_helper.to_array(tensor))
                _check(tensor.name, self._held[tensor.name], value)
                self._held[tensor.name] = value
            elif not ignore_unknown and not self._is_constant(tensor.name):
                raise popart_exception(f"resetHostWeights: the model has no weight {tensor.name!r}")

    def model(self) -> ModelProto:
        """The model with the values that were read back last."""
        found, rest = ModelProto(), dict(self._back)
        found.CopyFrom(self._proto)
        for tensor in found.graph.initializer:
            if tensor.name in rest:
                tensor.CopyFrom(tensor_of(rest.pop(tensor.name), tensor.name))
        found.graph.initializer.extend(tensor_of(array, name) for name, array in rest.items())
        return found

    def _is_constant(self, name: str) -> bool:
        return any(tensor.name == name for tensor in self._proto.graph.initializer)


def _copy(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().numpy().copy()
    return array


def _check(name: str, mine: np.ndarray, array: np.ndarray) -> None:
    if mine.shape != array.shape or mine.dtype != array.dtype:
        raise popart_exception(
            f"weight {name!r} is {mine.dtype}{list(mine.shape)}, the array is "
            f"{array.dtype}{list(array.shape)}"
        )

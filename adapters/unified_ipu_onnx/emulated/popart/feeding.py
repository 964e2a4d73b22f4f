"""From the arrays of a step to the inputs of each micro-batch."""

from __future__ import annotations

from typing import Dict, Mapping

import numpy as np
import torch
from onnx import ModelProto, TensorProto

from unified_ipu.device import CallShape, Position
from unified_ipu_onnx.emulated.popart.builder import STREAM_MODE
from unified_ipu_onnx.emulated.popart.data_flow import InputShapeInfo
from unified_ipu_onnx.emulated.popart.enums import SyntheticDataMode
from unified_ipu_onnx.emulated.popart.errors import popart_exception
from unified_ipu_onnx.emulated.popart.step_io import steps_of
from unified_ipu_onnx.emulated.popart.tensor_info import TensorInfo
from unified_ipu_onnx.reading import real_inputs

Arrays = Mapping[str, np.ndarray]


def inputs_of(proto: ModelProto, shapes: InputShapeInfo) -> Dict[str, TensorInfo]:
    """Shape and type of one micro-batch of every input.

    Raises:
        popart_exception: If one is not static.
    """
    fed, found = real_inputs(proto.graph), {}
    for value in proto.graph.input:
        if value.name not in fed:
            continue
        if shapes.has(value.name):
            found[value.name] = shapes.get(value.name)
            continue
        kind = value.type.tensor_type
        sizes = [dim.dim_value for dim in kind.shape.dim]
        if not kind.HasField("shape") or not all(sizes):
            raise popart_exception(
                f"the shape of input {value.name!r} is not static; give it to the model or to "
                "InputShapeInfo"
            )
        found[value.name] = TensorInfo(TensorProto.DataType.Name(kind.elem_type), sizes)
    return found


class Feeding:
    """Cuts the inputs of a step.

    Args:
        proto: The model; says which inputs all replicas share.
        inputs: Of one micro-batch.
        mode: Whether the device makes its own.
    """

    def __init__(
        self, proto: ModelProto, inputs: Mapping[str, TensorInfo], mode: SyntheticDataMode
    ) -> None:
        self._inputs = dict(inputs)
        self._mode = mode
        shared = {p.key for p in proto.metadata_props if p.value == "Broadcast"}
        self._shared = {name for name in inputs if f"{STREAM_MODE}{name}" in shared}

    def steps(
        self, arrays: Arrays, shape: CallShape, generator: torch.Generator
    ) -> Dict[str, np.ndarray]:
        """Cut every input into micro-batches, or make them.

        Raises:
            popart_exception: If one is missing, unknown or does not fit.
        """
        if self._mode is not SyntheticDataMode.Off:
            return {n: self._made(info, shape, generator) for n, info in self._inputs.items()}
        unknown = sorted(set(arrays) - set(self._inputs))
        if unknown:
            raise popart_exception(f"the graph has no input {unknown[0]!r}: {list(self._inputs)}")
        found = {}
        for name, info in self._inputs.items():
            if name not in arrays:
                raise popart_exception(f"no array for the input {name!r}")
            replicas = 1 if name in self._shared else shape.replicas
            count = shape.iterations * shape.accumulation * replicas
            found[name] = steps_of(name, arrays[name], info, count)
        return found

    def at(self, steps: Arrays, position: Position, shape: CallShape) -> Dict[str, np.ndarray]:
        """The inputs of one micro-batch."""
        shared = position.iteration * shape.accumulation + position.step
        return {
            name: steps[name][shared if name in self._shared else position.slice]
            for name in self._inputs
        }

    def _made(self, info: TensorInfo, shape: CallShape, generator: torch.Generator) -> np.ndarray:
        size = [shape.slices, *info.shape()]
        made = torch.zeros(size)
        if "float" in info.data_type_lcase():
            if self._mode is SyntheticDataMode.RandomNormal:
                made.normal_(generator=generator)
            elif self._mode is SyntheticDataMode.RandomUniform:
                made.uniform_(generator=generator)
        return made.numpy().astype(info.data_type_lcase())

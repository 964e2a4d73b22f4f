"""A model as PopART takes it: operator set 11 at most, static shapes, constants that stay."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, helper, shape_inference

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.ipu.opsets import to_older
from unified_ipu_onnx.popart_operators import GRAPHCORE, IMPLEMENTED, NEWEST_OPSET
from unified_ipu_onnx.reading import LoadedModel, plain_domain, real_inputs
from unified_ipu_onnx.values import put_values

_IR_VERSION = 4  # initializers need not be inputs, and PopART reads it
_NARROWED: Dict[int, int] = {
    TensorProto.DOUBLE: TensorProto.FLOAT,
    TensorProto.INT64: TensorProto.INT32,
}
_DTYPES: Dict[int, np.dtype] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.UINT32: np.dtype(np.uint32),
}
_PLACED = frozenset({"Conv", "ConvTranspose", "MatMul"})

Arrays = Mapping[str, np.ndarray]


class DeviceModel:
    """The graph of a program in the form that PopART reads.

    Args:
        source: The user's model.

    Raises:
        CapabilityError: If PopART cannot run it; all reasons are named.
    """

    def __init__(self, source: LoadedModel) -> None:
        self._proto, was_converted = _converted(source)
        self.notes: Tuple[str, ...] = ()
        if was_converted:
            self.notes = (f"the model is read as one of operator set {NEWEST_OPSET} for PopART",)
        _check(self._proto)
        graph = self._proto.graph
        inputs = real_inputs(graph)
        self.dtypes: Dict[str, np.dtype] = {}
        for value in graph.input:
            if value.name in inputs:
                kind = value.type.tensor_type
                kind.elem_type = _NARROWED.get(kind.elem_type, kind.elem_type)
                self.dtypes[value.name] = _dtype(value.name, kind.elem_type)
        del graph.value_info[:]
        self.outputs = tuple(value.name for value in graph.output)

    def with_shapes(
        self, inputs: Mapping[str, Sequence[int]], held: Mapping[str, torch.Tensor], trained: Any
    ) -> ModelProto:
        """A copy for one program.

        Args:
            inputs: Static shape of each input.
            held: Present values of initializers.
            trained: Names of those that stay weights; others become constants.

        Raises:
            ConfigError: If the graph fixes an input to another size.
        """
        copy = ModelProto()
        copy.CopyFrom(self._proto)
        put_values(copy, held)
        _fix(copy, inputs)
        _freeze(copy, [name for name in held if name not in trained])
        return copy

    def shape_of(self, output: str, inputs: Mapping[str, Sequence[int]]) -> Tuple[int, ...]:
        """Shape of an output for these inputs.

        Raises:
            ConfigError: If it cannot be inferred.
        """
        copy = ModelProto()
        copy.CopyFrom(self._proto)
        _fix(copy, inputs)
        for value in copy.graph.output:
            value.type.tensor_type.ClearField("shape")
        for value in shape_inference.infer_shapes(copy).graph.output:
            kind = value.type.tensor_type
            sizes = [dim.dim_value for dim in kind.shape.dim]
            if value.name == output and kind.HasField("shape") and all(sizes):
                return tuple(sizes)
        raise ConfigError(
            f"the shape of output {output!r} cannot be inferred from the graph, and a device has "
            "static shapes; export the model with static sizes"
        )


def place_memory(builder: Any, proto: ModelProto, share: float) -> None:
    """Set the share of memory for temporaries of every matrix product and convolution."""
    for node in proto.graph.node:
        if node.op_type in _PLACED and not node.domain:
            builder.setAvailableMemoryProportion(set(node.output), share)


def _converted(source: LoadedModel) -> Tuple[ModelProto, bool]:
    copy = ModelProto()
    copy.CopyFrom(source.proto)
    if source.base_dir is not None:
        onnx.external_data_helper.load_external_data_for_model(copy, str(source.base_dir))
    found = to_older(copy)
    found.ir_version = _IR_VERSION
    return found, found is not copy


def _check(proto: ModelProto) -> None:
    found: List[str] = []
    if proto.functions:
        found.append(f"function {proto.functions[0].name!r} of the model")
    for node in proto.graph.node:
        domain = plain_domain(node.domain)
        if domain not in {"", GRAPHCORE} or (not domain and node.op_type not in IMPLEMENTED):
            found.append(f"node {node.name or node.output[0]!r} ({node.op_type})")
    found += [
        f"weight {tensor.name!r} (float64)"
        for tensor in proto.graph.initializer
        if tensor.data_type == TensorProto.DOUBLE
    ]
    found += [
        f"constant {node.output[0]!r} (float64)"
        for node in proto.graph.node
        if node.op_type == "Constant"
        and any(a.t.data_type == TensorProto.DOUBLE for a in node.attribute)
    ]
    if found:
        raise CapabilityError(
            NAME,
            f"PopART cannot run {', '.join(found[:8])}; it has no float64 and the operators of "
            f"ONNX {NEWEST_OPSET} that its documents list: export the model in float32, or use "
            'target = "cpu"',
        )


def _dtype(name: str, kind: int) -> np.dtype:
    if kind not in _DTYPES:
        raise CapabilityError(
            NAME,
            f"input {name!r} is {TensorProto.DataType.Name(kind)}, which this device path does "
            "not feed; use float32 or int32",
        )
    return _DTYPES[kind]


def _fix(proto: ModelProto, inputs: Mapping[str, Sequence[int]]) -> None:
    for value in proto.graph.input:
        if value.name not in inputs:
            continue
        sizes, kind = list(inputs[value.name]), value.type.tensor_type
        said = [dim.dim_value for dim in kind.shape.dim]
        fits = len(said) == len(sizes) and all(a in {0, b} for a, b in zip(said, sizes))
        if kind.HasField("shape") and not fits:
            raise ConfigError(
                f"input {value.name!r} has shape {said} in the graph (0: any), got {sizes}"
            )
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind.elem_type, sizes))


def _freeze(proto: ModelProto, names: Sequence[str]) -> None:
    """Make constants of initializers, so that PopART does not train them."""
    graph = proto.graph
    tensors = {t.name: t for t in graph.initializer}
    held = [tensors[name] for name in names if name in tensors]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in held]
    kept = [t for t in graph.initializer if t.name not in names]
    inputs = [value for value in graph.input if value.name not in names]
    rest = list(graph.node)
    for field in ("initializer", "node", "input"):
        graph.ClearField(field)
    graph.initializer.extend(kept)
    graph.input.extend(inputs)
    graph.node.extend([*nodes, *rest])

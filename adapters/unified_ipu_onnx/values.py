"""Trained values into the initializers of a graph: nothing else in them changes."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy as np
import onnx
import torch

from unified_ipu.errors import ConfigError

ONNX_TYPES: Dict[torch.dtype, int] = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.float64: onnx.TensorProto.DOUBLE,
    torch.float16: onnx.TensorProto.FLOAT16,
    torch.bfloat16: onnx.TensorProto.BFLOAT16,
}
"""What can be trained, and so written."""

_TYPED_FIELDS = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the elements of a tensor as ``raw_data`` has them: row by row, little-endian.

    The memory is the tensor's own where it lies so on the host already.
    """
    value = tensor.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:  # numpy has no such type; its bits are those of an int16
        value = value.view(torch.int16)
    array: Any = value.numpy()
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat: Any = np.ascontiguousarray(array).reshape(-1)
    return memoryview(flat).cast("B")


def put_values(model: Any, values: Mapping[str, torch.Tensor]) -> None:
    """Overwrite initializers of a ``ModelProto`` in place; their names, shapes and types stay.

    Args:
        model: Its initializers of these names change; one that lay in a file beside the model
            lies inside afterwards.
        values: By name of the initializer.

    Raises:
        ConfigError: If a name is unknown, or a shape or type differs; nothing is changed then.
    """
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"the graph has no initializer {name!r}; it has {sorted(known)}")
        check_fits(known[name], value)
    for name, value in values.items():
        put_raw(known[name], bytes(raw_bytes(value)))


def check_fits(tensor: Any, value: torch.Tensor) -> None:
    """Make sure that a value has the shape and type of its initializer.

    Raises:
        ConfigError: If it has not.
    """
    shape = tuple(tensor.dims)
    if tuple(value.shape) != shape or ONNX_TYPES.get(value.dtype) != tensor.data_type:
        type_name = onnx.TensorProto.DataType.Name(tensor.data_type)
        raise ConfigError(
            f"initializer {tensor.name!r} is {type_name}{list(shape)}, got {value.dtype} "
            f"{list(value.shape)}; write values of the model's own shapes and types"
        )


def put_raw(tensor: Any, data: bytes) -> None:
    """Let a ``TensorProto`` hold these bytes itself, however it held its elements before."""
    for field in (*_TYPED_FIELDS, "external_data"):
        tensor.ClearField(field)
    tensor.ClearField("data_location")
    tensor.raw_data = data

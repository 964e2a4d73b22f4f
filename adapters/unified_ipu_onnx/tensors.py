"""Tensors of an ONNX file as torch tensors, bit for bit.

``onnx.numpy_helper`` is not used: what it returns for bfloat16 depends on its version (float32,
raw bits or an ml_dtypes array), and it copies once more.
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch
from onnx import TensorProto

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.errors import NAME

# ONNX name: (torch name, numpy type of the same width, field that holds it when there is no
# raw_data). The unsigned ones are absent before torch 2.3.
_TYPES: Dict[str, Tuple[str, str, str]] = {
    "FLOAT": ("float32", "<f4", "float_data"),
    "DOUBLE": ("float64", "<f8", "double_data"),
    "FLOAT16": ("float16", "<u2", "int32_data"),
    "BFLOAT16": ("bfloat16", "<u2", "int32_data"),
    "INT8": ("int8", "<i1", "int32_data"),
    "INT16": ("int16", "<i2", "int32_data"),
    "INT32": ("int32", "<i4", "int32_data"),
    "INT64": ("int64", "<i8", "int64_data"),
    "UINT8": ("uint8", "<u1", "int32_data"),
    "UINT16": ("uint16", "<u2", "int32_data"),
    "UINT32": ("uint32", "<u4", "uint64_data"),
    "UINT64": ("uint64", "<u8", "uint64_data"),
    "BOOL": ("bool", "|b1", "int32_data"),
    "COMPLEX64": ("complex64", "<c8", "float_data"),
    "COMPLEX128": ("complex128", "<c16", "double_data"),
}


def element_type_name(element_type: int) -> str:
    """Name of an ONNX element type, ``FLOAT`` for 1; a number nobody knows is given as such."""
    try:
        return str(TensorProto.DataType.Name(element_type))
    except ValueError:
        return f"type {element_type}"


def torch_dtype(element_type: int) -> torch.dtype:
    """Torch dtype of an ONNX element type.

    Raises:
        CapabilityError: If torch has none, as for strings and types of less than 8 bits.
    """
    name = element_type_name(element_type)
    found = getattr(torch, _TYPES[name][0], None) if name in _TYPES else None
    if not isinstance(found, torch.dtype):
        raise CapabilityError(
            NAME, f"tensors of element type {name} are not supported; expected one of {_known()}"
        )
    return found


def to_torch(tensor: TensorProto, base_dir: Optional[Path] = None) -> torch.Tensor:
    """Copy a tensor out of a file.

    Args:
        tensor: Of any supported type, with raw, typed or external data.
        base_dir: Folder that external data lies in; None if the model came without one.

    Returns:
        A tensor on the host that shares nothing with ``tensor``.

    Raises:
        CapabilityError: If its element type is not supported.
        ConfigError: If its data is missing, or has another size than its shape asks for.
    """
    dtype = torch_dtype(tensor.data_type)
    _, kind, field = _TYPES[element_type_name(tensor.data_type)]
    shape = [int(dim) for dim in tensor.dims]
    array = _stored(tensor, np.dtype(kind), field, base_dir)
    count = int(np.prod(shape, dtype=np.int64))
    if array.size != count:
        raise ConfigError(
            f"tensor {tensor.name!r} of shape {shape} needs {count} elements, its data has "
            f"{array.size}; the file is damaged, or was written by a faulty exporter"
        )
    if dtype in {torch.float16, torch.bfloat16}:
        return torch.from_numpy(array.view(np.int16)).view(dtype).reshape(shape)
    found: torch.Tensor = torch.from_numpy(array).reshape(shape)
    return found


def external_location(tensor: TensorProto, base_dir: Optional[Path]) -> Tuple[Path, int, int]:
    """File, offset and length in bytes of external data; length -1 means to the end.

    Args:
        tensor: With ``data_location`` EXTERNAL.
        base_dir: Folder of the model file.

    Raises:
        ConfigError: If there is no folder, or the file lies outside it.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = PurePosixPath(entries.get("location", ""))
    if base_dir is None:
        raise ConfigError(
            f"tensor {tensor.name!r} keeps its data in {str(location)!r}, and the model was given "
            "without a folder; pass the path of the .onnx file, or load its external data first"
        )
    folder = base_dir.resolve()
    path = (folder / location).resolve()
    # A file is data: it must not make us read elsewhere, by "..", absolute paths or links.
    if folder not in path.parents:
        raise ConfigError(
            f"tensor {tensor.name!r} keeps its data in {str(location)!r}, outside the folder of "
            "its model; external data must lie beside or below the .onnx file"
        )
    return path, int(entries.get("offset", 0)), int(entries.get("length", -1))


def _stored(
    tensor: TensorProto, kind: np.dtype[Any], field: str, base_dir: Optional[Path]
) -> np.ndarray[Any, Any]:
    if tensor.data_location == TensorProto.EXTERNAL:
        path, offset, length = external_location(tensor, base_dir)
        try:
            raw = np.fromfile(path, dtype=np.uint8, count=length, offset=offset)
        except OSError as error:
            raise ConfigError(
                f"external data of tensor {tensor.name!r} cannot be read: {error}"
            ) from error
        return _native(_from_bytes(tensor.name, raw, kind))
    if tensor.HasField("raw_data"):
        return _native(
            _from_bytes(tensor.name, np.frombuffer(tensor.raw_data, np.uint8), kind).copy()
        )
    values: List[Any] = list(getattr(tensor, field))
    if kind.kind == "c":
        part = np.asarray(values, dtype=f"<f{kind.itemsize // 2}")
        return _native(part.view(kind) if part.size % 2 == 0 else part)
    # int32_data holds narrow types widened, unsigned bits of float16 included.
    wide = np.asarray(values, dtype=np.uint64 if field == "uint64_data" else None)
    return _native(wide.astype(kind) if values else np.empty(0, kind))


def _from_bytes(name: str, raw: np.ndarray[Any, Any], kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if raw.size % kind.itemsize:
        raise ConfigError(
            f"tensor {name!r} has {raw.size} bytes of data, no multiple of {kind.itemsize}; the "
            "file is damaged, or was written by a faulty exporter"
        )
    return raw.view(kind)


def _native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # Files are little-endian, whatever the host.
    return array if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("="))


def _known() -> str:
    return ", ".join(
        name for name, (torch_name, _, _) in _TYPES.items() if hasattr(torch, torch_name)
    )

"""The bytes of initializers wherever they are: given, in the model, or in files beside it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from unified_ipu.errors import ConfigError
from unified_ipu_onnx.values import check_fits, raw_bytes

Range = Tuple[int, int]
"""Where an initializer begins in its file, and its bytes."""

_PAGE = 4096  # runtimes map weights into memory, which needs offsets at whole pages

_PLAIN = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT16,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32,
        onnx.TensorProto.UINT64,
        onnx.TensorProto.BOOL,
    }
)
"""Types whose typed fields every version of onnx turns into the same bytes."""


class Contents:
    """The bytes of every initializer, wherever they are."""

    def __init__(
        self, model: Any, values: Mapping[str, torch.Tensor], base_dir: Optional[Path]
    ) -> None:
        self.tensors: Dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.values = values
        self._base_dir = base_dir
        for name, value in values.items():
            if name not in self.tensors:
                raise ConfigError(
                    f"the graph has no initializer {name!r}; it has {sorted(self.tensors)}"
                )
            check_fits(self.tensors[name], value)

    def size(self, name: str) -> int:
        """Bytes of the elements."""
        tensor = self.tensors[name]
        if name in self.values:
            value = self.values[name]
            return value.numel() * value.element_size()
        if is_outside(tensor):
            return self._range(tensor)[2]
        return len(tensor.raw_data) or int(tensor.ByteSize())

    def can_move(self, name: str) -> bool:
        """Whether its bytes can lie in a file of their own."""
        tensor = self.tensors[name]
        known = name in self.values or tensor.HasField("raw_data") or is_outside(tensor)
        return known or tensor.data_type in _PLAIN

    def chunks(self, name: str) -> Iterator[Any]:
        """Its bytes, in parts."""
        tensor = self.tensors[name]
        if name in self.values:
            yield raw_bytes(self.values[name])
        elif is_outside(tensor):
            yield from _read_parts(*self._range(tensor))
        elif tensor.HasField("raw_data"):
            yield tensor.raw_data
        else:
            array = numpy_helper.to_array(tensor)
            yield np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()

    def _range(self, tensor: Any) -> Tuple[Path, int, int]:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self._base_dir is None:
            raise ConfigError(
                f"initializer {tensor.name!r} lies in the file {location!r} beside a model whose "
                "folder is unknown; pass the path of the model, or load it with its data"
            )
        file = inside(self._base_dir, location)
        if not file.is_file():
            raise ConfigError(
                f"initializer {tensor.name!r} lies in {str(file)!r}, which is missing; put the "
                "file back beside the model"
            )
        offset = int(entries.get("offset", 0))
        length = int(entries["length"]) if "length" in entries else file.stat().st_size - offset
        return file, offset, length


def data_files(path: Path) -> Dict[str, str]:
    """Initializer to data file, in the model that lies at ``path`` now; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception:  # noqa: BLE001  whatever lies there is no model, and is replaced
        return {}
    found = {}
    for tensor in model.graph.initializer:
        location = {e.key: e.value for e in tensor.external_data}.get("location", "")
        with suppress(ConfigError):
            inside(path.parent, location)
            found[tensor.name] = location
    return found


def inside(folder: Path, location: str) -> Path:
    """Path of a data file.

    Raises:
        ConfigError: If it is not inside the model's folder.
    """
    parts = Path(location).parts
    if not location or Path(location).is_absolute() or ".." in parts:
        raise ConfigError(
            f"data outside the model lies at {location!r}; expected a path inside its folder"
        )
    return folder / location


def write_data(file: Path, contents: Contents, names: List[str]) -> Dict[str, Range]:
    """Write a data file; where each initializer begins, and its bytes."""
    ranges = {}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        for name in names:
            stream.write(bytes(-stream.tell() % _PAGE))
            begin = stream.tell()
            for part in contents.chunks(name):
                stream.write(part)
            ranges[name] = (begin, stream.tell() - begin)
        stream.flush()
        os.fsync(stream.fileno())
    return ranges


def is_outside(tensor: Any) -> bool:
    """Whether an initializer is said to lie in a file beside the model."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _read_parts(file: Path, offset: int, length: int, part: int = 1 << 24) -> Iterator[bytes]:
    with file.open("rb") as stream:
        stream.seek(offset)
        while length > 0:
            data = stream.read(min(part, length))
            if not data:
                raise ConfigError(f"{str(file)!r} is shorter than its model says; restore the file")
            length -= len(data)
            yield data

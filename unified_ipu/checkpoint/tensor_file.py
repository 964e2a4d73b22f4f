"""Files of named tensors in the safetensors format, written straight from numpy arrays.

The safetensors package cannot write bfloat16 from numpy, and holds all bytes a second time; the
format is a JSON header and the bytes behind it, so this writes it itself, hashing on the way.

Source: the format as described in the README of huggingface/safetensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from unified_ipu.errors import CheckpointError

CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_NAMES = {code: name for name, code in CODES.items()}
_ALIGNMENT = 8
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file.

    Args:
        name: As the framework calls it.
        dtype: Name of the element type in the file.
        array: Its values; those of bfloat16, which numpy lacks, as float32.
    """

    name: str
    dtype: str
    array: np.ndarray


@dataclass(frozen=True)
class FileFacts:
    """What identifies a file.

    Args:
        num_bytes: Its size.
        sha256: Of its content, in hexadecimal.
    """

    num_bytes: int
    sha256: str


def check_storable(name: str, dtype: str) -> None:
    """Refuse element types that the format cannot hold.

    Raises:
        CheckpointError: If ``dtype`` is one of those.
    """
    if dtype not in CODES:
        raise CheckpointError(
            f"tensor {name!r} has dtype {dtype}, which checkpoints cannot hold; they hold "
            f"{', '.join(CODES)}"
        )


def write_tensors(path: Path, tensors: Sequence[StoredTensor]) -> FileFacts:
    """Write and fsync a new file.

    Raises:
        CheckpointError: If a tensor cannot be stored as its dtype without loss.
        OSError: If the file cannot be written.
    """
    # Widest elements first, so that each tensor starts at a multiple of its element size.
    order = sorted(tensors, key=lambda t: (-_element_bytes(t.dtype), t.name))
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}  # the key some readers ask for
    start = 0
    for tensor in order:
        stop = start + tensor.array.size * _element_bytes(tensor.dtype)
        header[tensor.name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.array.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("xb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            digest.update(part)
            num_bytes += file.write(part)
        for tensor in order:
            view = _to_bytes(tensor).data
            digest.update(view)
            num_bytes += file.write(view)
        file.flush()
        os.fsync(file.fileno())
    return FileFacts(num_bytes, digest.hexdigest())


def read_tensors(path: Path, facts: FileFacts) -> Dict[str, StoredTensor]:
    """Read a whole file that must be the one that was written.

    Raises:
        CheckpointError: If it is missing, cut, changed, or no such file.
    """
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    if content.size != facts.num_bytes:
        raise CheckpointError(
            f"{path.name} has {content.size} bytes, its manifest says {facts.num_bytes}"
        )
    if hashlib.sha256(content.data).hexdigest() != facts.sha256:
        raise CheckpointError(f"the content of {path.name} is not that of its manifest's sha256")
    header, data = _split(path, content)
    found: Dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            found[name] = _from_bytes(path, name, entry, data)
    return found


def _split(path: Path, content: np.ndarray) -> Tuple[Mapping[str, Any], np.ndarray]:
    length = int.from_bytes(content[:8].tobytes(), "little")
    if content.size < _ALIGNMENT or length > min(content.size - 8, _LONGEST_HEADER):
        raise CheckpointError(f"{path.name} is no safetensors file: its header does not fit")
    try:
        header = json.loads(content[8 : 8 + length].tobytes())
    except ValueError as error:
        raise CheckpointError(f"{path.name} is no safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name} is no safetensors file: its header is no table")
    return header, content[8 + length :]


def _from_bytes(path: Path, name: str, entry: Any, data: np.ndarray) -> StoredTensor:
    try:
        dtype = _NAMES[entry["dtype"]]
        shape: List[int] = [int(dim) for dim in entry["shape"]]
        start, stop = (int(offset) for offset in entry["data_offsets"])
        raw = data[start:stop].view("uint16" if dtype == "bfloat16" else dtype).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name}: the entry of {name!r} is wrong: {error}") from error
    if dtype == "bfloat16":
        return StoredTensor(name, dtype, (raw.astype(np.uint32) << 16).view(np.float32))
    return StoredTensor(name, dtype, raw)


def _to_bytes(tensor: StoredTensor) -> np.ndarray:
    check_storable(tensor.name, tensor.dtype)
    array = np.ascontiguousarray(tensor.array).reshape(-1)
    expected = "float32" if tensor.dtype == "bfloat16" else tensor.dtype
    if array.dtype.name != expected:
        raise CheckpointError(
            f"tensor {tensor.name!r} of dtype {tensor.dtype} was read as {array.dtype.name}; "
            f"expected {expected}"
        )
    if tensor.dtype == "bfloat16":
        words = array.view(np.uint32)
        if np.any(words & 0xFFFF):
            raise CheckpointError(f"tensor {tensor.name!r} has values that bfloat16 cannot hold")
        array = (words >> 16).astype(np.uint16)
    return array.view(np.uint8)


def _element_bytes(dtype: str) -> int:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize

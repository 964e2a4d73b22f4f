"""A model into its file, whole or not at all, with large weights in a file beside it.

Protobuf cannot hold 2 GiB, so beyond a limit the weights lie in files of their own, which the model
names. Saving a second time replaces such a file; it never grows. Replacing two files cannot be one
step of a file system. So where the model at that path uses a data file already, the new data gets
another name, the model is replaced by one that uses that name, the data is copied to its final
name, and the model is replaced once more. After each of these steps the path holds a model that can
be read, the old one or the new one. (A second link would save the copy, but onnx refuses to read
data files that have two.)
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Union

import onnx
import torch

from unified_ipu.errors import ConfigError
from unified_ipu_onnx.contents import Contents, Range, data_files, inside, is_outside, write_data
from unified_ipu_onnx.values import put_raw, raw_bytes

LIMIT = 2**31 - 2**20
"""Bytes of weights that a model's file may hold: what protobuf can, less room for the graph."""

_INTERRUPTED = re.compile(r"\.new-\d+$")  # what a save that was killed leaves in use

_SMALLEST = 1024  # what is smaller stays in the model's file, as onnx does it


def save_model(
    model: Any,
    path: Union[str, Path],
    *,
    values: Optional[Mapping[str, torch.Tensor]] = None,
    base_dir: Optional[Path] = None,
    limit: int = LIMIT,
) -> None:
    """Write a model so that its path always holds a whole one.

    Initializers that lay outside stay outside. If there are more than ``limit`` bytes of them, all
    of 1024 bytes and more go outside, into ``NAME.data`` beside the model, or into the file where
    the model at ``path`` keeps them.

    Args:
        model: A ``ModelProto``; it is not changed.
        path: Where to; an existing file is replaced.
        values: Of initializers, instead of those in ``model``.
        base_dir: Folder of the data files that ``model`` names; needed if it names some.
        limit: Bytes of weights that the model's file may hold itself.

    Raises:
        ConfigError: If the folder is missing, a value does not fit, or data outside is missing.
        OSError: If something cannot be written; the model at ``path`` is as it was.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    contents = Contents(model, values or {}, base_dir)
    places = _places(contents, path, limit)
    before = data_files(path).values()
    targets = {location: inside(path.parent, location) for location in places.values()}
    fresh = {location: _fresh(target) for location, target in targets.items()}
    try:
        ranges: Dict[str, Range] = {}
        for location, file in fresh.items():
            names = [name for name, place in places.items() if place == location]
            ranges.update(write_data(file, contents, names))
        if set(places.values()) & set(before):
            passing = {n: fresh[p].relative_to(path.parent).as_posix() for n, p in places.items()}
            _replace(path, _laid_out(model, contents, passing, ranges))
            for location, file in fresh.items():
                _copy_over(file, targets[location])
        else:
            for location, file in fresh.items():
                file.replace(targets[location])
        _replace(path, _laid_out(model, contents, places, ranges))
    finally:
        ours = {inside(path.parent, place) for place in before if _is_ours(path, place)}
        used = {inside(path.parent, place) for place in data_files(path).values()}
        for file in (set(fresh.values()) | ours) - used:
            with suppress(FileNotFoundError):
                file.unlink()


def _places(contents: Contents, path: Path, limit: int) -> Dict[str, str]:
    """Initializer to the data file it goes to, for those that go outside.

    Raises:
        ConfigError: If too many bytes have to stay inside.
    """
    sizes = {name: contents.size(name) for name in contents.tensors}
    is_over = sum(sizes.values()) > limit
    before = data_files(path)
    places = {}
    for name, tensor in contents.tensors.items():
        is_large = is_over and sizes[name] >= _SMALLEST and contents.can_move(name)
        if is_outside(tensor) or is_large:
            place = before.get(name, f"{path.name}.data")
            places[name] = _INTERRUPTED.sub("", place)
    left = sum(size for name, size in sizes.items() if name not in places)
    if left > limit:
        raise ConfigError(
            f"{path.name}: {left} bytes of weights cannot be moved out of the model's file, which "
            f"may hold {limit}; store them as raw_data"
        )
    return places


def _is_ours(path: Path, location: str) -> bool:
    return location == f"{path.name}.data" or bool(_INTERRUPTED.search(location))


def _laid_out(
    model: Any, contents: Contents, places: Mapping[str, str], ranges: Mapping[str, Range]
) -> bytes:
    """Serialize the model with its values; those in ``places`` only by file, offset and length."""
    whole = _without_initializers(model)
    for tensor in model.graph.initializer:
        added = whole.graph.initializer.add()
        name = tensor.name
        if name in places:
            _point(added, tensor, places[name], ranges[name])
            continue
        added.CopyFrom(tensor)
        if name in contents.values:
            put_raw(added, bytes(raw_bytes(contents.values[name])))
    serialized: bytes = whole.SerializeToString()
    return serialized


def _without_initializers(model: Any) -> Any:
    # Field by field, since a copy of the whole may not fit into memory.
    whole = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy_field(whole, field, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _copy_field(whole.graph, field, value)
    return whole


def _point(added: Any, tensor: Any, location: str, place: Range) -> None:
    added.name, added.data_type = tensor.name, tensor.data_type
    added.dims.extend(tensor.dims)
    if tensor.doc_string:
        added.doc_string = tensor.doc_string
    added.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(place[0]), "length": str(place[1])}
    for key, entry in entries.items():
        added.external_data.add(key=key, value=entry)


def _copy_field(target: Any, field: Any, value: Any) -> None:
    if hasattr(value, "extend") or hasattr(value, "MergeFrom"):
        getattr(target, field.name).MergeFrom(value)
    else:
        setattr(target, field.name, value)


def _fresh(target: Path) -> Path:
    return target.with_name(f"{target.name}.new-{os.getpid()}")


def _replace(path: Path, data: bytes) -> None:
    fresh = _fresh(path)
    try:
        with fresh.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    finally:
        with suppress(FileNotFoundError):
            fresh.unlink()
    _sync_folder(path.parent)


def _copy_over(file: Path, target: Path) -> None:
    copy = target.with_name(f"{target.name}.copy-{os.getpid()}")
    try:
        shutil.copyfile(file, copy)
        with copy.open("rb+") as stream:
            os.fsync(stream.fileno())
        copy.replace(target)
    finally:
        with suppress(FileNotFoundError):
            copy.unlink()
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

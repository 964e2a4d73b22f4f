"""A model from a path or from memory: checked for age, external data left where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple, Union

import onnx
from onnx import GraphProto, ModelProto

from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.errors import NAME

OLDEST_IR = 3  # before, a graph's initializers had no defined relation to its inputs


@dataclass(frozen=True)
class LoadedModel:
    """A model and the folder its external data is found in.

    Attributes:
        proto: The model; tensors of a file keep their data outside until they are read.
        base_dir: Folder of the file; None for a model given in memory without one.
        path: The file, if it came from one.
    """

    proto: ModelProto
    base_dir: Optional[Path]
    path: Optional[Path] = None


def read_model(
    model: Union[str, Path, ModelProto], *, base_dir: Optional[Path] = None
) -> LoadedModel:
    """Read a model without its external data, and check that it is not too old.

    Args:
        model: Path of a ``.onnx`` file, or a model in memory.
        base_dir: Folder of the external data of a model in memory.

    Returns:
        The model; the very object if one was given.

    Raises:
        ConfigError: If the file cannot be read as ONNX, or the model has no graph.
        CapabilityError: If it is older than IR version 3, or newer than the installed ``onnx``.
    """
    if isinstance(model, ModelProto):
        loaded = LoadedModel(model, base_dir)
    else:
        path = Path(model)
        try:
            proto = onnx.load(str(path), load_external_data=False)
        except OSError as error:
            raise ConfigError(f"cannot read {str(path)!r}: {error}") from error
        except Exception as error:
            raise ConfigError(f"{str(path)!r} is no ONNX model: {error}") from error
        loaded = LoadedModel(proto, path.parent, path)
    _check(loaded.proto)
    return loaded


def opsets_of(imports: Any) -> Dict[str, int]:
    """Operator set version of each domain; the default domain is ``""`` in both its spellings."""
    return {plain_domain(entry.domain): int(entry.version) for entry in imports}


def plain_domain(domain: str) -> str:
    """``""`` for the default domain, which files also call ``ai.onnx``."""
    return "" if domain == "ai.onnx" else domain


def real_inputs(graph: GraphProto) -> Tuple[str, ...]:
    """Inputs that must be fed: files of IR version 3 list every initializer as an input too."""
    held = {tensor.name for tensor in graph.initializer}
    held |= {tensor.values.name for tensor in graph.sparse_initializer}
    return tuple(value.name for value in graph.input if value.name not in held)


def _check(proto: ModelProto) -> None:
    if not proto.HasField("graph"):
        raise ConfigError("the model has no graph; was it read from an ONNX file?")
    if proto.ir_version < OLDEST_IR:
        raise CapabilityError(
            NAME,
            f"the model has IR version {proto.ir_version}, {OLDEST_IR} is the oldest supported; "
            "export it again with a newer exporter",
        )
    newest = onnx.defs.onnx_opset_version()
    opset = opsets_of(proto.opset_import).get("", 1)
    if opset > newest:
        raise CapabilityError(
            NAME,
            f"the model has operator set {opset}, the installed onnx {onnx.__version__} knows up "
            f"to {newest}; install a newer onnx",
        )

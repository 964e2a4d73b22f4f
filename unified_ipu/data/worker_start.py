"""What a data process is told at its start: a line of JSON, and pickled objects behind it.

Only objects of the process that starts it, for its own child, over the child's standard input.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
from typing import Any, Dict, Mapping, Tuple

from unified_ipu.errors import ConfigError, DataError


def pack(value: Any) -> bytes:
    """Pickle an object for a data process; with cloudpickle, if it is there.

    Raises:
        DataError: If it cannot be pickled, with what to do.
    """
    module: Any = pickle
    if importlib.util.find_spec("cloudpickle") is not None:
        module = importlib.import_module("cloudpickle")
    try:
        packed: bytes = module.dumps(value)
    except Exception as error:
        raise DataError(
            f"the dataset cannot be handed to data processes: {type(error).__name__}: {error}; "
            'pass ui.data.dataset("module:function", size=) with a function that makes it, or '
            "set data.workers = 0 to read it in the rank's own process"
        ) from error
    return packed


def unpack(packed: bytes) -> Any:
    """Load what ``pack`` made.

    Raises:
        DataError: If it needs what is not there, e.g. a class of the main script.
    """
    try:
        return pickle.loads(packed)  # noqa: S301 - from the process that started this one
    except (AttributeError, ImportError) as error:
        raise DataError(
            f"the dataset cannot be loaded in the data process: {error}; put its class and "
            "collate function into a module beside the script (or install cloudpickle)"
        ) from error


def write_start(config: Mapping[str, Any], packed: bytes) -> bytes:
    """Bytes that ``read_start`` reads."""
    return json.dumps({**config, "packed_bytes": len(packed)}).encode() + b"\n" + packed


def read_start(descriptor: int) -> Tuple[Dict[str, Any], bytes]:
    """Read the plan of a data process and the pickled objects behind it.

    Raises:
        ConfigError: If there is nothing of the kind.
    """
    line, found, rest = b"", b"", b""
    while not found:
        line, found, rest = (line + _read(descriptor)).partition(b"\n")
    config: Dict[str, Any] = json.loads(line)
    pieces = [rest]
    missing = config["packed_bytes"] - len(rest)
    while missing > 0:
        pieces.append(_read(descriptor))
        missing -= len(pieces[-1])
    return config, b"".join(pieces)


def _read(descriptor: int) -> bytes:
    piece = os.read(descriptor, 1 << 16)
    if not piece:
        raise ConfigError("the data process is started by a loader, with its plan on stdin")
    return piece

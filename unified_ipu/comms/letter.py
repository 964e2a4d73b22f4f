"""What goes before the bytes of one array from one rank to another, whatever carries it."""

from __future__ import annotations

import json
from typing import Any, Tuple

import numpy as np

from unified_ipu.comms.arrays import Flat, Target, to_target

_NO_TARGET = Target(None, np.zeros(0, np.uint8))


def write_header(source: Flat, name: str) -> np.ndarray:
    """Describe an array, or why it cannot be sent, as bytes, uint8 ``[n]``."""
    header = {
        "dtype": source.dtype,
        "shape": source.array.shape,
        "name": name,
        "problem": source.problem,
    }
    return np.frombuffer(json.dumps(header).encode(), np.uint8)


def open_header(header: np.ndarray, out: Any, name: str) -> Tuple[Target, str]:
    """Say where the bytes that follow go.

    Args:
        header: What ``write_header`` made.
        out: The array to fill, or None for a new one.
        name: What the receiver expects; "" takes any.

    Returns:
        The target, and "" or what does not fit: then there are no bytes to take.
    """
    said = json.loads(header.tobytes())
    shape, dtype = tuple(said["shape"]), said["dtype"]
    sent = f"{dtype} {shape} {said['name']!r}"
    if said["problem"]:
        return _NO_TARGET, f"the sender could not send: {said['problem']}"
    if name and said["name"] and name != said["name"]:
        return _NO_TARGET, f"{sent} was sent, {name!r} is expected"
    target = to_target(out, shape, np.dtype(dtype))
    if target.problem:
        return _NO_TARGET, f"{sent} was sent, {target.problem}"
    return target, ""

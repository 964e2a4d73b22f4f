"""JSON values between ranks: names, decisions, counts. Nothing is pickled."""

from __future__ import annotations

import json
from typing import Any, List, Tuple

import numpy as np

from unified_ipu.comms.group import Group
from unified_ipu.comms.signature import build_signature
from unified_ipu.comms.staged import check_root, gather_bytes


def all_gather_value(group: Group, value: Any, what: str = "all_gather_value") -> List[Any]:
    """Every rank's value, in rank order."""
    data, problem = encode(value)
    signature = build_signature(what, problem=problem)
    _, parts = gather_bytes(group, data, signature, 0)
    return [json.loads(part.tobytes()) for part in parts]


def broadcast_value(group: Group, value: Any, root: int) -> Any:
    """The root's value on every rank."""
    data, problem = encode(value if group.rank == root else None)
    problem = problem or check_root(root, group.size)
    signature = build_signature(f"broadcast_value root={root}", problem=problem)
    _, parts = gather_bytes(group, data, signature, 0)
    return json.loads(parts[root].tobytes())


def encode(value: Any) -> Tuple[np.ndarray, str]:
    """``([n] uint8, problem)`` of a value; a problem comes with no bytes."""
    try:
        data = json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return np.empty(0, np.uint8), f"{type(value).__name__} is no JSON value: {error}"
    return np.frombuffer(data, np.uint8), ""
